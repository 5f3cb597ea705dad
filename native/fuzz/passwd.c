/* Any bytes as passwd(5) and group(5). What is found is a part of the file. */
#include "../passwd.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    static const unsigned char name[] = "u";
    struct reader file = reader_of(bytes, size);
    struct account account;
    uint32_t ids[8];
    if (!passwd_by_name(file, reader_of(name, 1), &account))
        must(account.home.at >= bytes && account.shell.at + account.shell.left <= bytes + size);
    (void)passwd_by_uid(file, 1, &account);
    must(group_ids(file, reader_of(name, 1), 1, ids, ARRAY_SIZE(ids)) <= ARRAY_SIZE(ids));
    return 0;
}
