/* Preloaded, counts the system calls that may change files below a folder, and lets one of them go
   wrong: the process dies before it, dies in the middle of a write, or gets an error. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { NOTHING, KILL, TEAR, FAIL, FAIL_ON };

static char root[4096];
static size_t root_length;
static int mode, error_number;
static long chosen, seen;
static char kinds[1 << 16]; /* a letter for each call so far */
static unsigned char ours[1 << 16]; /* descriptors of files below the folder */

/* Begin to count below a folder; the call of a number, from 1, goes wrong in some mode. */
void faults_arm(const char *folder, int how, long number, int with) {
    root_length = strlen(folder);
    memcpy(root, folder, root_length + 1);
    mode = how, chosen = number, error_number = with, seen = 0;
}

/* The letters of the calls since then, as many as there were. */
const char *faults_seen(void) {
    kinds[seen < (long)sizeof kinds ? seen : (long)sizeof kinds - 1] = 0;
    return kinds;
}

static int below(const char *path) {
    return root_length && path && !strncmp(path, root, root_length) &&
           (path[root_length] == '/' || !path[root_length]);
}

static int is_ours(int handle) {
    return root_length && handle >= 0 && handle < (int)sizeof ours && ours[handle];
}

static void own(int handle, int is) {
    if (handle >= 0 && handle < (int)sizeof ours) ours[handle] = is;
}

/* Whether this call goes wrong by an error; dies here where it has to. */
static int fails(char kind) {
    if (seen < (long)sizeof kinds - 1) kinds[seen] = kind;
    seen++;
    if (mode == KILL && seen == chosen) raise(SIGKILL);
    if ((mode == FAIL && seen == chosen) || (mode == FAIL_ON && seen >= chosen)) {
        errno = error_number;
        return 1;
    }
    return 0;
}

#define REAL(name, type, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int opened(int handle, int mine) {
    if (mine) own(handle, 1);
    return handle;
}

/* o: opened to be written; r: to be read, or a folder. */
static char purpose(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT) ? 'o' : 'r'; }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(#name, int, const char *, int, ...); \
        va_list more; va_start(more, flags); \
        mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int mine = below(path); \
        if (mine && fails(purpose(flags))) return -1; \
        return opened(real(path, flags, bits), mine); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        REAL(#name, int, int, const char *, int, ...); \
        va_list more; va_start(more, flags); \
        mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int mine = below(path); \
        if (mine && fails(purpose(flags))) return -1; \
        return opened(real(at, path, flags, bits), mine); \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int handle, const void *data, size_t size) {
    REAL("write", ssize_t, int, const void *, size_t);
    if (is_ours(handle)) {
        if (fails('w')) return -1;
        if (mode == TEAR && seen == chosen) {
            real(handle, data, size / 2);
            raise(SIGKILL);
        }
    }
    return real(handle, data, size);
}

ssize_t read(int handle, void *data, size_t size) {
    REAL("read", ssize_t, int, void *, size_t);
    if (is_ours(handle) && fails('e')) return -1;
    return real(handle, data, size);
}

int close(int handle) {
    REAL("close", int, int);
    int mine = is_ours(handle);
    own(handle, 0);
    int failed = mine && fails('c'), with = errno;
    int result = real(handle); /* the descriptor is gone all the same, as on Linux */
    if (!failed) return result;
    errno = with;
    return -1;
}

#define HANDLE(name, letter, parameters, arguments) \
    int name parameters { \
        int (*real) parameters = (int (*) parameters)dlsym(RTLD_NEXT, #name); \
        if (is_ours(handle) && fails(letter)) return -1; \
        return real arguments; \
    }
HANDLE(fsync, 's', (int handle), (handle))
HANDLE(fdatasync, 's', (int handle), (handle))
HANDLE(ftruncate, 't', (int handle, off_t size), (handle, size))
HANDLE(ftruncate64, 't', (int handle, off64_t size), (handle, size))

#define PATH(name, letter, parameters, arguments, path) \
    int name parameters { \
        int (*real) parameters = (int (*) parameters)dlsym(RTLD_NEXT, #name); \
        if (below(path) && fails(letter)) return -1; \
        return real arguments; \
    }
PATH(rename, 'n', (const char *from, const char *to), (from, to), to)
PATH(mkdir, 'm', (const char *path, mode_t bits), (path, bits), path)
PATH(link, 'l', (const char *from, const char *to), (from, to), to)
PATH(linkat, 'l', (int at, const char *from, int at_to, const char *to, int flags),
     (at, from, at_to, to, flags), to)
PATH(unlink, 'u', (const char *path), (path), path)
PATH(rmdir, 'u', (const char *path), (path), path)
