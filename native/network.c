/* The network interface of a virtual machine. QEMU is at its other end, and makes ordinary calls in the VMM's jail. Only
 * the gateway answers there, at every address, so any address will do for a resolver. Without network access the
 * interface is down, and calls fail. */
#include "machine.h"

#define INTERFACE "eth0"
static const struct ipv4_address ADDRESS = {AF_INET, {0}, {10, 0, 2, 15}, {0}}, MASK = {AF_INET, {0}, {255, 255, 255, 0}, {0}},
                                 GATEWAY = {AF_INET, {0}, {10, 0, 2, 2}, {0}}, ANY = {AF_INET, {0}, {0}, {0}}; /* QEMU's own */
static const char RESOLVERS[] = "/etc/resolv.conf", RESOLVER[] = "nameserver 192.0.2.53\n"; /* RFC 5737: no host's */

/* netdevice(7) */
static int configure(unsigned long command, const void *request)
{
    HELD int fd = TRY(sys_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC));
    return sys_ioctl(fd, command, P(request));
}

static struct interface_request request_of(const char *interface)
{
    struct interface_request request = {0};
    memcpy(request.name, interface, min_size(strlen(interface), sizeof request.name - 1));
    return request;
}

int network_up(const char *interface, bool up)
{
    struct interface_request request = request_of(interface);
    request.is.flags = up ? IFF_UP : 0;
    return configure(SIOCSIFFLAGS, &request);
}

/* The kernel forgets the neighbours of the old address. */
int network_address(const unsigned char address[6])
{
    struct interface_request request = request_of(INTERFACE);
    request.is.hardware.family = ARPHRD_ETHER;
    memcpy(request.is.hardware.bytes, address, 6);
    return configure(SIOCSIFHWADDR, &request);
}

static int set_address(unsigned long command, struct ipv4_address address)
{
    struct interface_request request = request_of(INTERFACE);
    request.is.address = address;
    return configure(command, &request);
}

/* Leaves an image alone that has no list of resolvers. */
static void add_resolver(void)
{
    char text[4096];
    HELD int fd = sys_openat(AT_FDCWD, RESOLVERS, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    long got = fd < 0 ? fd : sys_pread(fd, text, sizeof text, 0);
    if (got >= 0 && !find_bytes(text, (size_t)got, "nameserver", 10) && sys_pwrite(fd, RESOLVER, sizeof RESOLVER - 1, 0) > 0)
        (void)sys_ftruncate(fd, sizeof RESOLVER - 1);
}

int network_connect(bool online)
{
    struct route route = {.destination = ANY, .gateway = GATEWAY, .mask = ANY, .flags = RTF_UP | RTF_GATEWAY};
    if (!online)
        return network_up(INTERFACE, false);
    TRY(set_address(SIOCSIFADDR, ADDRESS));
    TRY(set_address(SIOCSIFNETMASK, MASK));
    TRY(network_up(INTERFACE, true));
    int result = configure(SIOCADDRT, &route);
    if (!result || result == -EEXIST) /* a copy of a machine with this route */
        add_resolver();
    return result == -EEXIST ? 0 : result;
}
