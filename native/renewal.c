/* The renewal of a sandbox after a copy, a sleep, or as a spare, so that no two are the same. It does each part if
 * possible, and reports the others. */
#include "io.h"
#include "machine.h"
#include "process.h"

enum { MOST = 1 << 16, OWN_PROCESSES = 8, SECONDS = 1000000000 };
/* The renewal of a sandbox without a separate kernel. */
static const uint32_t ANYWHERE = PART_HOSTNAME | PART_HOSTS;
#define GROUP "/sys/fs/cgroup/sandbox/"
static const char *const MEMORY_DIRECTORIES[] = {"/dev/shm", "/tmp", "/run", "/run/lock"};

/* -EEXIST: one is there, or a link is on the way, which could lead anywhere. */
static int all_absent(struct reader paths)
{
    const struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    while (paths.left) {
        HELD int fd = (int)CALL4(openat2, AT_FDCWD, P(next_string(&paths)), P(&how), sizeof how);
        if (fd >= 0 || fd == -ELOOP)
            return -EEXIST;
        if (fd != -ENOENT && fd != -ENOTDIR)
            return fd;
    }
    return 0;
}

static int mix_in(struct reader entropy)
{
    struct {
        int32_t bits, size;
        unsigned char bytes[512];
    } pool = {(int32_t)(8 * entropy.left), (int32_t)entropy.left, {0}};
    HELD int fd = TRY(sys_openat(AT_FDCWD, "/dev/urandom", O_RDWR | O_NONBLOCK | O_CLOEXEC, 0));
    if (entropy.left)
        memcpy(pool.bytes, entropy.at, entropy.left);
    TRY(sys_ioctl(fd, RNDADDENTROPY, P(&pool)));
    return sys_ioctl(fd, RNDRESEEDCRNG, 0);
}

/* Opens a file of an image, never a link's target. A pipe without a reader doesn't block. */
static int open_file(const char *path, int flags, struct statx *is)
{
    HELD int fd = TRY(sys_openat(AT_FDCWD, path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
    TRY(sys_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, is));
    return is_regular(is) ? fd_take(&fd) : -EINVAL;
}

/* To cut it first would have its blocks freed, and found anew. */
static int write_over(const char *path, int flags, const void *bytes, size_t size)
{
    struct statx is;
    HELD int fd = TRY(open_file(path, O_WRONLY | flags, &is));
    TRY(write_all(fd, bytes, size));
    return is.size == size ? 0 : sys_ftruncate(fd, (int64_t)size);
}

static int set_machine_id(struct reader id)
{
    unsigned char text[33];
    if (id.left != 32)
        return -EINVAL;
    memcpy(text, id.at, 32);
    text[32] = '\n';
    return write_over("/etc/machine-id", O_CREAT, text, sizeof text);
}

/* Replaces the line in /etc/hosts that names the sandbox. A missing file gets its usual lines as well. */
static const char OTHERS[] = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
static const char OURS[] = "\t# this sandbox\n";

static size_t without_ours(unsigned char *text, size_t size)
{
    size_t kept = 0;
    for (size_t at = 0; at < size;) {
        const unsigned char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end + 1 - text) - at : size - at;
        bool ours = length >= sizeof OURS - 1 && !memcmp(text + at + length - (sizeof OURS - 1), OURS, sizeof OURS - 1);
        if (!ours) {
            memmove(text + kept, text + at, length);
            kept += length;
        }
        at += length;
    }
    return kept;
}

static int rewrite_hosts(int fd, struct reader name, unsigned char *text, unsigned char *before)
{
    long got = TRY(sys_pread(fd, text, MOST, 0));
    memcpy(before, text, (size_t)got);
    if (!got)
        memcpy(text, OTHERS, sizeof OTHERS - 1);
    struct writer to = writer_of(text, 2 * MOST);
    to.used = without_ours(text, got ? (size_t)got : sizeof OTHERS - 1);
    if (to.used && text[to.used - 1] != '\n')
        (void)put_bytes(&to, "\n", 1);
    (void)put_bytes(&to, "127.0.0.1\t", 10);
    (void)put_bytes(&to, name.at, name.left);
    (void)put_bytes(&to, OURS, sizeof OURS - 1);
    if (to.used == (size_t)got && !memcmp(before, text, to.used))
        return 0;
    TRY(sys_pwrite(fd, text, to.used, 0));
    return sys_ftruncate(fd, (int64_t)to.used);
}

static int name_in_hosts(struct reader name)
{
    struct statx is;
    int fd = open_file("/etc/hosts", O_RDWR | O_CREAT, &is);
    if (fd < 0)
        return fd == -EINVAL ? 0 : fd; /* what isn't a file stays as it is, and so does what is too large */
    unsigned char *text = is.size > MOST ? NULL : sys_map(3 * MOST);
    int result = is.size > MOST ? 0 : text ? rewrite_hosts(fd, name, text, text + 2 * MOST) : -ENOMEM;
    if (text)
        sys_unmap(text, 3 * MOST);
    if (!result && !is.size)
        result = sys_fchmod(fd, 0644); /* with any mask */
    fd_close(&fd);
    return result;
}

/* Limits all processes inside and their children. Root inside can raise it again for its own. */
static int limit_files(uint64_t most)
{
    const struct rlimit limit = {most, most};
    struct numbers pids;
    int pid, more, result = 0;
    TRY(numbers_open(&pids, "/proc"));
    while ((more = numbers_next(&pids, &pid)) > 0 && !result) {
        result = sys_prlimit(pid, RLIMIT_NOFILE, &limit, NULL);
        result = result == -ESRCH ? 0 : result; /* it has just ended */
    }
    numbers_close(&pids);
    return more < 0 ? more : result;
}

static int set_limits(uint64_t open_files, uint64_t processes, uint64_t tmp_bytes)
{
    uint64_t wanted[3] = {open_files, processes, tmp_bytes};
    char number[DECIMAL_SIZE], options[PATH_MAX];
    if (!memcmp(the_machine.limits, wanted, sizeof wanted))
        return 0;
    memset(the_machine.limits, 0, sizeof wanted);
    TRY(limit_files(open_files));
    TRY(write_file(AT_FDCWD, GROUP "pids.max", decimal(number, processes + OWN_PROCESSES)));
    (void)JOIN(options, PATH_MAX, "size=", decimal(number, tmp_bytes));
    for (size_t i = 0; i < ARRAY_SIZE(MEMORY_DIRECTORIES); i++)
        TRY(sys_mount(NULL, MEMORY_DIRECTORIES[i], NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, options));
    memcpy(the_machine.limits, wanted, sizeof wanted);
    return 0;
}

static int set_clock(uint64_t now)
{
    struct timespec time = {(int64_t)(now / SECONDS), (int64_t)(now % SECONDS)};
    return (int)CALL2(clock_settime, CLOCK_REALTIME, P(&time));
}

static int set_network(bool online)
{
    if (the_machine.online == online)
        return 0;
    int result = network_connect(online);
    the_machine.online = result ? -1 : online;
    return result;
}

static int renew_part(const struct renew_message *renewal, uint32_t part)
{
    switch (part) {
    case PART_ABSENT:
        return all_absent(renewal->absent);
    case PART_ENTROPY:
        return mix_in(renewal->entropy);
    case PART_HOSTNAME:
        return (int)CALL2(sethostname, P(renewal->hostname.at), (long)renewal->hostname.left);
    case PART_HOSTS:
        return name_in_hosts(renewal->hosts);
    case PART_LIMITS:
        return set_limits(renewal->open_files, renewal->processes, renewal->tmp_bytes);
    case PART_MAC_ADDRESS:
        return renewal->mac_address.left == 6 ? network_address(renewal->mac_address.at) : -EINVAL;
    case PART_MACHINE_ID:
        return set_machine_id(renewal->machine_id);
    case PART_NETWORK:
        return set_network(renewal->online);
    case PART_CLOCK:
        return set_clock(renewal->clock);
    default:
        return -EINVAL;
    }
}

void renew_perform(struct channel *channel, const void *message, struct frame *frame)
{
    const struct renew_message *renewal = message;
    struct renew_reply_message reply = {0, 0};
    bool machine = agent_of(channel)->init->machine;
    for (uint32_t part = 1; part & PART_FLAGS; part <<= 1)
        if (renewal->parts & part)
            *((!machine && part & ~ANYWHERE) || renew_part(renewal, part) ? &reply.failed : &reply.done) |= part;
    request_reply(channel, &renew_reply_shape, &reply);
}

void machine_trust(struct channel *channel, const void *message, struct frame *frame)
{
    const struct trust_message *trust = message;
    struct reader systems = trust->systems;
    char place[PATH_MAX];
    int result = write_over(text_in(place, PATH_MAX, trust->place), O_CREAT, trust->data.at, trust->data.left);
    while (systems.left) /* none there, or a link: what it leads to is one of the others */
        (void)write_over(next_string(&systems), 0, trust->data.at, trust->data.left);
    request_answer(channel, result, "trust");
}

void machine_share(struct channel *channel, const void *message, struct frame *frame)
{
    const struct share_message *share = message;
    char target[PATH_MAX];
    if (share->number >= 64 * ARRAY_SIZE(the_machine.shares))
        return request_refuse(channel);
    uint64_t bit = 1ull << share->number % 64, *shown = &the_machine.shares[share->number / 64];
    int result = the_machine.mounted ? 0 : shares_mount(the_machine.files, &agent_of(channel)->init->relay);
    the_machine.mounted |= !result;
    if (!result && !(*shown & bit))
        result = shares_show(share->number, share->flags & SHARE_WRITABLE, text_in(target, PATH_MAX, share->target));
    if (!result)
        *shown |= bit;
    request_answer(channel, result, "share");
}
