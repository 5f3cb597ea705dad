/* The network access of a virtual machine. Its card leads to QEMU, which makes ordinary calls in the VMM's jail for it.
 * Only the gateway answers there, at every address, so any address will do for a resolver. Without exits the card is
 * down, and calls fail. */
#include "machine.h"

#define CARD "eth0"
static const struct ipv4_address ADDRESS = {AF_INET, {0}, {10, 0, 2, 15}, {0}}, MASK = {AF_INET, {0}, {255, 255, 255, 0}, {0}},
                                 GATEWAY = {AF_INET, {0}, {10, 0, 2, 2}, {0}}, ANY = {AF_INET, {0}, {0}, {0}}; /* QEMU's own */
static const char RESOLVERS[] = "/etc/resolv.conf", RESOLVER[] = "nameserver 192.0.2.53\n"; /* RFC 5737: no host's */

/* netdevice(7) */
static int ask(unsigned long order, const void *request)
{
    HELD int fd = TRY(sys_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC));
    return sys_ioctl(fd, order, P(request));
}

static struct card_request request_of(const char *card)
{
    struct card_request request = {0};
    memcpy(request.name, card, min_size(strlen(card), sizeof request.name - 1));
    return request;
}

int card_up(const char *card, bool up)
{
    struct card_request request = request_of(card);
    request.is.flags = up ? IFF_UP : 0;
    return ask(SIOCSIFFLAGS, &request);
}

/* Its known neighbours are deleted with the old one. */
int card_address(const unsigned char address[6])
{
    struct card_request request = request_of(CARD);
    request.is.hardware.family = ARPHRD_ETHER;
    memcpy(request.is.hardware.bytes, address, 6);
    return ask(SIOCSIFHWADDR, &request);
}

static int give(unsigned long order, struct ipv4_address address)
{
    struct card_request request = request_of(CARD);
    request.is.address = address;
    return ask(order, &request);
}

/* An image without a list of resolvers looks up no names, or has its own way. */
static void name_a_resolver(void)
{
    char text[4096];
    HELD int fd = sys_openat(AT_FDCWD, RESOLVERS, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    long got = fd < 0 ? fd : sys_pread(fd, text, sizeof text, 0);
    if (got >= 0 && !find_bytes(text, (size_t)got, "nameserver", 10) && sys_pwrite(fd, RESOLVER, sizeof RESOLVER - 1, 0) > 0)
        (void)sys_ftruncate(fd, sizeof RESOLVER - 1);
}

int card_lead(bool out)
{
    struct route route = {.destination = ANY, .gateway = GATEWAY, .mask = ANY, .flags = RTF_UP | RTF_GATEWAY};
    if (!out)
        return card_up(CARD, false);
    TRY(give(SIOCSIFADDR, ADDRESS));
    TRY(give(SIOCSIFNETMASK, MASK));
    TRY(card_up(CARD, true));
    int result = ask(SIOCADDRT, &route);
    if (!result || result == -EEXIST) /* a copy of one that had it */
        name_a_resolver();
    return result == -EEXIST ? 0 : result;
}
