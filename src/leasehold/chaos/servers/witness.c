/* Sees each write to a file of a server, before it happens, and each sync. It asks the kernel (seccomp), not libc, so
 * programs that need no libc are seen, too; it takes no rights beyond those of the user.
 *
 *   witness run SOCKET COMMAND...   becomes the command, and leaves it to the witness at SOCKET what becomes of its writes
 *   witness keep PREFIX             is that witness: of the files whose path begins like this
 *
 * `keep` is told what to do over its standard input, a socket that keeps messages apart, and answers there:
 *
 *   room      each write goes on (so it begins)
 *   no-growth each write that would make a file longer fails with ENOSPC: a full disk that overwrites in place
 *   no-write  each write fails with ENOSPC: a full disk that never overwrites in place
 *   synced    take everything that was written so far for synced
 *   drop      undo what was written since the last sync of each file, and forget it: only when nobody runs any more
 *
 * A write is remembered with what was there before, until the file is synced. Syncs count from when they begin: what is
 * being synced may or may not survive, and here it does. Names of files (made, renamed, removed) always survive.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/falloc.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "the witness knows x86-64 and 64-bit ARM"
#endif
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#define MOST_COMMANDS 256

static void die(const char *what) {
    fprintf(stderr, "witness: %s: %s\n", what, strerror(errno));
    exit(126);
}

/* The command */

#define ARGUMENT(n) offsetof(struct seccomp_data, args[n])
#define LOAD(at) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at)
#define WHEN(value, then) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1), BPF_STMT(BPF_RET | BPF_K, then)
#define SEE(name) WHEN(SYS_##name, SECCOMP_RET_USER_NOTIF)
/* Ways around the witness. Whoever is told that the kernel does not have them uses plain writes. */
#define HIDE(name) WHEN(SYS_##name, SECCOMP_RET_ERRNO | ENOSYS)

static struct sock_filter filter[] = {
    LOAD(offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    LOAD(offsetof(struct seccomp_data, nr)),
    SEE(write), SEE(pwrite64), SEE(writev), SEE(pwritev), SEE(pwritev2),
    SEE(fsync), SEE(fdatasync), SEE(syncfs), SEE(sync), SEE(ftruncate), SEE(fallocate),
    HIDE(io_setup), HIDE(io_uring_setup), HIDE(copy_file_range),
    /* Memory that writes itself to a file: shared, of a file, and to be written. */
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    LOAD(ARGUMENT(2)),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_WRITE, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    LOAD(ARGUMENT(3)),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_ANONYMOUS, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_SHARED, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
};

static void run(int witness, char **command) {
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) die("no_new_privs");
    int seen = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program);
    if (seen < 0) seen = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program); /* before Linux 5.19 */
    if (seen < 0) _exit(125);
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec word = {"seen", 4};
    struct msghdr message = {.msg_iov = &word, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *carried = CMSG_FIRSTHDR(&message);
    carried->cmsg_level = SOL_SOCKET;
    carried->cmsg_type = SCM_RIGHTS;
    carried->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(carried), &seen, sizeof seen);
    if (sendmsg(witness, &message, MSG_NOSIGNAL) < 0) _exit(124);
    close(seen);
    close(witness);
    execvp(command[0], command);
    die(command[0]);
}

/* What is not synced */

struct change { struct change *before; off_t at, size; size_t length; int written; char old[]; };
struct file { struct file *next; dev_t device; ino_t inode; int open; struct change *last; };
static struct file *unsynced;
static enum { ROOM, NO_GROWTH, NO_WRITE } disk;
static const char *prefix;

static void forget(struct file *file) {
    while (file->last) {
        struct change *last = file->last;
        file->last = last->before;
        free(last);
    }
}

static void synced(dev_t device, ino_t inode, int all) {
    for (struct file **at = &unsynced; *at;) {
        struct file *file = *at;
        if (!all && (file->device != device || file->inode != inode)) { at = &file->next; continue; }
        forget(file);
        close(file->open);
        *at = file->next;
        free(file);
    }
}

/* Remember what is in a file from here on, for so long, before it changes. */
static int remember(const char *link, const struct stat *about, off_t at, off_t length, int written) {
    struct file *file = unsynced;
    while (file && (file->device != about->st_dev || file->inode != about->st_ino)) file = file->next;
    if (!file) {
        int opened = open(link, O_RDWR | O_CLOEXEC);
        if (opened < 0 || !(file = calloc(1, sizeof *file))) return -1;
        *file = (struct file){unsynced, about->st_dev, about->st_ino, opened, NULL};
        unsynced = file;
    }
    off_t there = at < about->st_size ? about->st_size - at : 0;
    if (length < there) there = length;
    struct change *change = malloc(sizeof *change + there);
    if (!change) return -1;
    *change = (struct change){file->last, at, about->st_size, 0, written};
    while (change->length < (size_t)there) {
        ssize_t got = pread(file->open, change->old + change->length, there - change->length, at + change->length);
        if (got < 0) { free(change); return -1; }
        if (got == 0) break;
        change->length += got;
    }
    file->last = change;
    return 0;
}

/* How many bytes that were written are undone; -1 where that failed. */
static long long drop(void) {
    long long dropped = 0;
    for (struct file *file = unsynced; file; file = file->next) {
        for (struct change *change = file->last; change; change = change->before) {
            struct stat about;
            if (fstat(file->open, &about)) return -1;
            if (change->length && pwrite(file->open, change->old, change->length, change->at) != (ssize_t)change->length)
                return -1;
            if (about.st_size != change->size && ftruncate(file->open, change->size)) return -1;
            if (change->written)
                dropped += change->length + (about.st_size > change->size ? about.st_size - change->size : 0);
        }
    }
    synced(0, 0, 1);
    return dropped;
}

/* The witness */

static int fdinfo(pid_t task, int file, long long *at, unsigned long *flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", task, file);
    FILE *info = fopen(path, "re");
    if (!info) return -1;
    int found = fscanf(info, "pos: %lld flags: %lo", at, flags);
    fclose(info);
    return found == 2 ? 0 : -1;
}

/* What the call is to fail with; 0 where it goes on. */
static int look(const struct seccomp_notif *seen) {
    const uint64_t *with = (const uint64_t *)seen->data.args;
    int call = seen->data.nr, file = call == SYS_mmap ? (int)with[4] : (int)with[0];
    char link[64], path[4096];
    struct stat about;
    if (call == SYS_sync || call == SYS_syncfs) { synced(0, 0, 1); return 0; }
    snprintf(link, sizeof link, "/proc/%d/fd/%d", seen->pid, file);
    if (stat(link, &about) || !S_ISREG(about.st_mode)) return 0;
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < (ssize_t)strlen(prefix) || strncmp(path, prefix, strlen(prefix))) return 0;
    if (length > 4 && !memcmp(path + length - 4, "-shm", 4)) return 0; /* SQLite makes it anew after a crash */
    if (call == SYS_mmap) return ENODEV; /* as on a file system that cannot do it */
    if (call == SYS_fsync || call == SYS_fdatasync) { synced(about.st_dev, about.st_ino, 0); return 0; }
    long long at = 0;
    unsigned long flags = 0;
    off_t most = about.st_size;
    if (fdinfo(seen->pid, file, &at, &flags)) return EIO;
    off_t from = flags & O_APPEND ? about.st_size : at, many;
    switch (call) {
    case SYS_write: many = with[2]; break;
    case SYS_pwrite64: from = flags & O_APPEND ? from : (off_t)with[3]; many = with[2]; break;
    case SYS_pwritev: case SYS_pwritev2:
        if (!(flags & O_APPEND) && (int64_t)with[3] >= 0) from = with[3];
        /* fall through */
    case SYS_writev: many = from < most ? most - from : 1; break; /* how many is in its memory; more does no harm */
    case SYS_ftruncate: from = with[1]; many = from < most ? most - from : 0; break;
    default: /* fallocate */ from = with[2]; many = with[3]; break;
    }
    if (disk != ROOM && call != SYS_ftruncate && many && (disk == NO_WRITE || from + many > most)) return ENOSPC;
    if (flags & O_DSYNC && call != SYS_ftruncate) return 0; /* it is synced when it returns */
    return remember(link, &about, from, many, call != SYS_ftruncate && call != SYS_fallocate) ? EIO : 0;
}

static int answer(int listener) {
    struct seccomp_notif seen = {0};
    struct seccomp_notif_resp said = {0};
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &seen)) return errno == ENOENT || errno == EINTR ? 0 : -1;
    int error = look(&seen);
    said.id = seen.id;
    said.error = -error;
    said.flags = error ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &said); /* who was killed meanwhile does not hear it */
    return 0;
}

/* A message from whoever gives orders, or from a command that brings its listener; -1 when all have gone. */
static int obey(int *listener) {
    char word[32] = {0}, said[32] = "done", control[CMSG_SPACE(sizeof(int))];
    struct iovec into = {word, sizeof word - 1};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t length = recvmsg(0, &message, MSG_CMSG_CLOEXEC);
    *listener = -1;
    if (length <= 0) return -1;
    struct cmsghdr *carried = CMSG_FIRSTHDR(&message);
    if (carried && carried->cmsg_type == SCM_RIGHTS) { memcpy(listener, CMSG_DATA(carried), sizeof *listener); return 0; }
    if (!strcmp(word, "room")) disk = ROOM;
    else if (!strcmp(word, "no-growth")) disk = NO_GROWTH;
    else if (!strcmp(word, "no-write")) disk = NO_WRITE;
    else if (!strcmp(word, "synced")) synced(0, 0, 1);
    else if (!strcmp(word, "drop")) snprintf(said, sizeof said, "%lld", drop());
    else snprintf(said, sizeof said, "unknown");
    return send(0, said, strlen(said), MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static void keep(void) {
    struct pollfd ends[MOST_COMMANDS] = {{.fd = 0, .events = POLLIN}};
    int number = 1;
    for (;;) {
        if (poll(ends, number, -1) < 0 && errno != EINTR) die("poll");
        for (int each = number - 1; each > 0; each--) {
            int over = ends[each].revents & POLLIN ? answer(ends[each].fd) : ends[each].revents & (POLLHUP | POLLERR);
            if (over) { close(ends[each].fd); ends[each] = ends[--number]; }
        }
        if (ends[0].revents) {
            int listener;
            if (obey(&listener)) return;
            if (listener >= 0) {
                if (number == MOST_COMMANDS) { errno = EMFILE; die("too many commands"); }
                ends[number++] = (struct pollfd){.fd = listener, .events = POLLIN};
            }
        }
    }
}

int main(int count, char **words) {
    if (count > 3 && !strcmp(words[1], "run")) run(atoi(words[2]), words + 3);
    if (count == 3 && !strcmp(words[1], "keep")) { prefix = words[2]; keep(); return 0; }
    fprintf(stderr, "usage: witness run SOCKET COMMAND... | witness keep PREFIX\n");
    return 64;
}
