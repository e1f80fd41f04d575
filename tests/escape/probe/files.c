/* Files: what can be seen, opened for writing, linked to. */
#include "probe.h"

static int canary_count;
static char **canary_paths;

static void look_from(const char *base)
{
    for (int i = 0; i < canary_count; i++) {
        char path[PATH_MAX * 2], content[128];
        snprintf(path, sizeof path, "%s%s", base, canary_paths[i]);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            continue;
        ssize_t bytes = read(file, content, sizeof content - 1);
        content[bytes > 0 ? bytes : 0] = 0;
        say("seen", "%s %s", path, content);
        close(file);
    }
}

/* A handle names a file by its number in its filesystem; number 2 is the root of an ext4. */
static void try_handles(void)
{
    struct {
        struct file_handle head;
        unsigned char bytes[MAX_HANDLE_SZ];
    } handle = {.head = {.handle_bytes = MAX_HANDLE_SZ}};
    int mount;
    say("name_to_handle_at", "%s", answer(name_to_handle_at(AT_FDCWD, "/", &handle.head, &mount, 0)));
    handle.head.handle_bytes = 8;
    handle.head.handle_type = 1;
    memset(handle.head.f_handle, 0, 8);
    handle.head.f_handle[0] = 2;
    int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int opened = open_by_handle_at(root, &handle.head, O_RDONLY);
    say("open_by_handle_at", "%s", answer(opened));
    if (opened >= 0)
        close(opened);
    close(root);
}

/* canary PATH...: files of the host that must not be found, from wherever one can start. */
int canary(int count, char **arguments)
{
    canary_count = count - 1;
    canary_paths = arguments + 1;
    char up[64 * 3 + 1] = "";
    for (int i = 0; i < 64; i++)
        strcat(up, "../");
    const char *bases[] = {"", up, "/proc/1/root", "/proc/self/root", "/proc/self/cwd", "/proc/self/root/..",
                           "/proc/1/cwd", "/proc/thread-self/root", "/dev/fd/0/..", "/proc/self/fd/1/.."};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        look_from(bases[i]);
    each_mount(look_from);
    for (int i = 0; i < 64; i++) {
        char path[64];
        for (int whose = 0; whose < 2; whose++) {
            snprintf(path, sizeof path, whose ? "/proc/1/fd/%d" : "/proc/self/fd/%d", i);
            look_from(path);
        }
    }
    struct stat root;
    if (stat("/", &root) == 0)
        say("root", "%lu:%lu", (unsigned long)root.st_dev, (unsigned long)root.st_ino);
    try_handles();
    return 0;
}

/* descriptors: by asking for every number, because /proc could be lying or absent. */
int descriptors(int count, char **arguments)
{
    (void)count, (void)arguments;
    for (int i = 0; i < 4096; i++) {
        struct stat stat;
        char path[64], target[PATH_MAX] = "?";
        if (fcntl(i, F_GETFD) < 0)
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", i);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        const char *type = "unknown";
        if (fstat(i, &stat) == 0)
            type = S_ISREG(stat.st_mode)    ? "file"
                   : S_ISDIR(stat.st_mode)  ? "directory"
                   : S_ISFIFO(stat.st_mode) ? "pipe"
                   : S_ISSOCK(stat.st_mode) ? "socket"
                   : S_ISCHR(stat.st_mode)  ? "device"
                                            : "other";
        char item[16];
        snprintf(item, sizeof item, "%d", i);
        say(item, "%s %s", type, target);
    }
    return 0;
}

static long opened_for_writing;

/* Opening for writing without truncation changes nothing, and it is closed at once. */
static void try_to_open(const char *path)
{
    int file = open(path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
    if (file < 0)
        return;
    opened_for_writing++;
    say("opened", "%s", path);
    close(file);
}

static void walk(const char *path, int depth)
{
    DIR *directory = opendir(path);
    if (!directory)
        return;
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        char below[PATH_MAX];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        if (entry->d_type == DT_DIR && depth > 0)
            walk(below, depth - 1);
        else if (entry->d_type == DT_REG)
            try_to_open(below);
    }
    closedir(directory);
}

/* writable PATH...: files are opened, directories get a file that is removed at once, trees of the kernel are walked. */
int writable(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        struct stat stat;
        if (lstat(arguments[i], &stat) < 0) {
            say("absent", "%s", arguments[i]);
        } else if (S_ISDIR(stat.st_mode)) {
            char path[PATH_MAX];
            snprintf(path, sizeof path, "%s/.probe-%d", arguments[i], getpid());
            int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
            say(file < 0 ? "refused" : "made", "%s %s", arguments[i], answer(file));
            if (file >= 0) {
                close(file);
                unlink(path);
            }
        } else {
            int file = open(arguments[i], O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
            say(file < 0 ? "refused" : "opened", "%s %s", arguments[i], answer(file));
            if (file >= 0)
                close(file);
        }
    }
    walk("/proc/sys", 6);
    walk("/sys", 5);
    walk("/sys/fs/cgroup", 5);
    say("kernel files open for writing", "%ld", opened_for_writing);
    return 0;
}

static void make_link(const char *name, const char *target)
{
    unlink(name);
    say(name, "%s", answer(symlink(target, name)));
}

/* links FILE: in the working directory, ways to point to FILE of the host and to what lies around it. */
int links(int count, char **arguments)
{
    if (count < 2)
        return 2;
    const char *file = arguments[1];
    char directory[PATH_MAX], text[PATH_MAX], up[41 * 3 + 1] = "";
    snprintf(directory, sizeof directory, "%s", file);
    char *slash = strrchr(directory, '/');
    *(slash == directory ? slash + 1 : slash) = 0;
    for (int i = 0; i < 40; i++)
        strcat(up, "../");

    make_link("absolute", file);
    snprintf(text, sizeof text, "%s%s", up, file + 1);
    make_link("relative", text);
    make_link("directory", directory);
    make_link("chain-0", file);
    for (int i = 1; i < 39; i++) {
        char name[32], before[32];
        snprintf(name, sizeof name, "chain-%d", i);
        snprintf(before, sizeof before, "chain-%d", i - 1);
        unlink(name);
        if (symlink(before, name) < 0)
            say(name, "%s", answer(-1));
    }
    make_link("chain", "chain-38");
    snprintf(text, sizeof text, "/proc/self/root%s", file);
    make_link("magic-self", text);
    snprintf(text, sizeof text, "/proc/1/root%s", file);
    make_link("magic-init", text);
    snprintf(text, sizeof text, "/proc/self/cwd/%s%s", up, file + 1);
    make_link("magic-cwd", text);
    snprintf(text, sizeof text, "%s.missing", file);
    make_link("dangling", text);
    /* Where the negative control shows the host's tree. */
    snprintf(text, sizeof text, "/mnt%s", file);
    make_link("shown", text);
    make_link("loop", "loop");
    return 0;
}

/* hardlinks FILE...: a second name here for a file of elsewhere; then many names for one file of our own. */
int hardlinks(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "hard-%d", i);
        unlink(name);
        say(arguments[i], "%s", answer(linkat(AT_FDCWD, arguments[i], AT_FDCWD, name, AT_SYMLINK_FOLLOW)));
        unlink(name);
    }
    int file = open("own", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    close(file);
    int made = 0;
    for (; made < 1000; made++) {
        char name[64];
        snprintf(name, sizeof name, "own-%d", made);
        unlink(name);
        if (link("own", name) < 0)
            break;
    }
    say("own", "%d", made);
    return 0;
}

/* ids: who this is, as the kernel says. */
int ids(int count, char **arguments)
{
    (void)count, (void)arguments;
    uid_t real, effective, saved;
    gid_t real_group, effective_group, saved_group;
    getresuid(&real, &effective, &saved);
    getresgid(&real_group, &effective_group, &saved_group);
    say("uid", "%u %u %u", real, effective, saved);
    say("gid", "%u %u %u", real_group, effective_group, saved_group);
    FILE *status = fopen("/proc/self/status", "re");
    char line[512];
    while (status && fgets(line, sizeof line, status))
        if (strncmp(line, "Cap", 3) == 0 || strncmp(line, "NoNewPrivs", 10) == 0)
            fputs(line, stdout);
    if (status)
        fclose(status);
    return 0;
}

/* kernel-files PATH...: how much each gives away. */
int kernel_files(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        char bytes[4096];
        struct stat stat;
        int file = open(arguments[i], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (file < 0) {
            say(arguments[i], "%s", answer(-1));
            continue;
        }
        if (fstat(file, &stat) == 0 && S_ISDIR(stat.st_mode)) {
            DIR *directory = fdopendir(file);
            int entries = -2;
            while (directory && readdir(directory))
                entries++;
            say(arguments[i], "directory %d", entries);
            continue;
        }
        ssize_t length = read(file, bytes, sizeof bytes);
        if (length < 0)
            say(arguments[i], "%s", answer(-1));
        else
            say(arguments[i], length > 0 && strspn(bytes, "0") >= 16 ? "zeroed" : "bytes %zd", length);
        close(file);
    }
    long logged = syscall(SYS_syslog, 10, NULL, 0);
    say("kernel log", "%s", answer(logged));
    return 0;
}
