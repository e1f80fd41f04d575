/* System calls, by number and arguments, as the host lists them. */
#include "probe.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define X32_BIT 0x40000000L

/* The old 32-bit door of an x86-64 kernel; elsewhere there is none. */
static long call_32_bit(const unsigned long *call)
{
#if defined(__x86_64__)
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(call[0]), "b"(call[1]), "c"(call[2]), "d"(call[3]), "S"(call[4]), "D"(call[5])
                     : "memory", "r8", "r9", "r10", "r11");
    return result;
#else
    (void)call;
    return -ENOSYS;
#endif
}

static void make_call(const char *label, const char *door, const unsigned long *call)
{
    int channel[2];
    long result = 0;
    if (pipe(channel) < 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        alarm(2);
        /* A thread that changes sides, or a copy of this process, must not answer for it. */
        pid_t self = getpid();
        long number = strcmp(door, "x32") == 0 ? (long)(call[0] | X32_BIT) : (long)call[0];
        if (strcmp(door, "i386") == 0) {
            result = call_32_bit(call);
        } else {
            result = syscall(number, call[1], call[2], call[3], call[4], call[5], call[6]);
            if (result == -1)
                result = -errno;
        }
        if (getpid() != self)
            _exit(0);
        if (write(channel[1], &result, sizeof result) < 0)
            _exit(1);
        _exit(0);
    }
    close(channel[1]);
    ssize_t got = read(channel[0], &result, sizeof result);
    close(channel[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (got == sizeof result && result < 0 && result > -4096) {
        errno = -result;
        say(label, "%s", answer(-1));
    } else if (got == sizeof result) {
        say(label, "ok");
    } else if (WIFSIGNALED(status)) {
        say(label, "signal %d", WTERMSIG(status));
    } else {
        say(label, "ended");
    }
}

/* calls: lines `label door number a0 a1 a2 a3 a4 a5` on standard input, one answer each. */
int calls(int count, char **arguments)
{
    (void)count, (void)arguments;
    char label[128], door[16];
    unsigned long call[7];
    while (scanf("%127s %15s %li %li %li %li %li %li %li", label, door, (long *)&call[0], (long *)&call[1],
                 (long *)&call[2], (long *)&call[3], (long *)&call[4], (long *)&call[5], (long *)&call[6]) == 9)
        make_call(label, door, call);
    return 0;
}

/* refuse NUMBER PROGRAM...: the program on a kernel that seems to lack one system call. */
int refuse(int count, char **arguments)
{
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number(count, arguments, 1, -1), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof lines / sizeof *lines, lines};
    if (count < 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0)
        return 2;
    execv(arguments[2], arguments + 2);
    return 127;
}
