/* Loaded into the daemon with LD_PRELOAD: fails, delays or records what it does to the files of its state directory,
 * and its look-ups of names.
 *
 * FAULTS_CONTROL names a file with a `struct control`, which the other process changes at any time.
 * FAULTS_STATE is the state directory. FAULTS_RECORD names a file that gets every write, cut and sync, in their order:
 *   kind (1 byte: W, T, S), file (1 byte: d the store, l its log), offset and length (8 bytes each), content of a write.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

struct control {
  char calls[16]; /* r read, w write, s sync, o open, n rename, u unlink, t truncate, a allocate, g look up; empty: none */
  char files[16]; /* d the store, l its log, m its index of the log, x any other; of a look-up x */
  int32_t error;  /* what they fail with; 0: they are only late */
  int32_t delay;  /* in milliseconds */
  int32_t skip;   /* so many go well before */
  int32_t count;  /* so many fail */
  int32_t hits;   /* so many have failed, or were late */
};

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct control *control;
static const char *state;
static int record = -1;

__attribute__((constructor)) static void begin(void) {
  const char *name = getenv("FAULTS_CONTROL");
  int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
  if (getenv("FAULTS_STATE")) state = strdup(getenv("FAULTS_STATE"));
  if (name) {
    int fd = real(name, O_RDWR | O_CLOEXEC);
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) abort();
    close(fd);
  }
  if ((name = getenv("FAULTS_RECORD"))) record = real(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int ends_with(const char *path, const char *end) {
  size_t size = strlen(path), least = strlen(end);
  return size >= least && !strcmp(path + size - least, end);
}

static char kind_of_path(const char *path) {
  if (!path || !state || strncmp(path, state, strlen(state))) return 0;
  if (ends_with(path, "/store.sqlite")) return 'd';
  if (ends_with(path, "/store.sqlite-wal")) return 'l';
  if (ends_with(path, "/store.sqlite-shm")) return 'm';
  return 'x';
}

static char kind_of(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return kind_of_path(path);
}

/* Whether this call fails; it has waited then. `errno` is set. */
static int fails(char call, char file) {
  if (!control || !control->calls[0] || !file) return 0;
  if (!memchr(control->calls, call, sizeof control->calls) || !memchr(control->files, file, sizeof control->files))
    return 0;
  if (__atomic_fetch_sub(&control->skip, 1, __ATOMIC_SEQ_CST) > 0) return 0;
  if (__atomic_fetch_sub(&control->count, 1, __ATOMIC_SEQ_CST) <= 0) return 0;
  __atomic_fetch_add(&control->hits, 1, __ATOMIC_SEQ_CST);
  int error = control->error;
  if (control->delay) usleep(1000u * (unsigned)control->delay);
  if (error) errno = error;
  return error != 0;
}

static void note(char what, char file, int64_t offset, int64_t size, const void *content) {
  if (record < 0 || (file != 'd' && file != 'l')) return;
  pthread_mutex_lock(&lock);
  char head[18] = {what, file};
  memcpy(head + 2, &offset, 8);
  memcpy(head + 10, &size, 8);
  if (write(record, head, 18) != 18 || (content && write(record, content, size) != size)) abort();
  pthread_mutex_unlock(&lock);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
  REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
  char file = kind_of(fd);
  if (fails('w', file)) {
    int error = errno;
    if (size > 1) real(fd, data, size / 2, offset); /* a part is on the disk: the worst that a disk does */
    errno = error;
    return -1;
  }
  ssize_t done = real(fd, data, size, offset);
  if (file && done > 0) note('W', file, offset, done, data);
  return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }

ssize_t write(int fd, const void *data, size_t size) {
  REAL(ssize_t, "write", int, const void *, size_t);
  if (control && control->calls[0] && fails('w', kind_of(fd))) return -1;
  return real(fd, data, size);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset) {
  REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
  /* The first page is left: a daemon without it has no store at all. */
  if (offset >= 4096 && control && control->calls[0] && fails('r', kind_of(fd))) return -1;
  return real(fd, data, size, offset);
}
ssize_t pread(int fd, void *data, size_t size, off_t offset) { return pread64(fd, data, size, offset); }

ssize_t read(int fd, void *data, size_t size) {
  REAL(ssize_t, "read", int, void *, size_t);
  if (control && control->calls[0] && fails('r', kind_of(fd))) return -1;
  return real(fd, data, size);
}

static int cut(int fd, off64_t size, const char *name) {
  int (*real)(int, off64_t) = (int (*)(int, off64_t))dlsym(RTLD_NEXT, name);
  char file = kind_of(fd);
  if (fails('t', file)) return -1;
  int done = real(fd, size);
  if (file && !done) note('T', file, size, 0, NULL);
  return done;
}
int ftruncate64(int fd, off64_t size) { return cut(fd, size, "ftruncate64"); }
int ftruncate(int fd, off_t size) { return cut(fd, size, "ftruncate64"); }

static int cut_path(const char *path, off64_t size, const char *name) {
  int (*real)(const char *, off64_t) = (int (*)(const char *, off64_t))dlsym(RTLD_NEXT, name);
  return fails('t', kind_of_path(path)) ? -1 : real(path, size);
}
int truncate64(const char *path, off64_t size) { return cut_path(path, size, "truncate64"); }
int truncate(const char *path, off_t size) { return cut_path(path, size, "truncate64"); }

static int allocated(int fd, off64_t offset, off64_t size, const char *name) {
  int (*real)(int, off64_t, off64_t) = (int (*)(int, off64_t, off64_t))dlsym(RTLD_NEXT, name);
  return fails('a', kind_of(fd)) ? errno : real(fd, offset, size);
}
int posix_fallocate64(int fd, off64_t offset, off64_t size) { return allocated(fd, offset, size, "posix_fallocate64"); }
int posix_fallocate(int fd, off_t offset, off_t size) { return allocated(fd, offset, size, "posix_fallocate64"); }

static int synced(int fd, const char *name) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
  char file = kind_of(fd);
  if (fails('s', file)) return -1;
  int done = real(fd);
  if (file && !done) note('S', file, 0, 0, NULL);
  return done;
}
int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }

static int opened(const char *path, int flags, mode_t mode, const char *name) {
  int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
  char file = kind_of_path(path);
  /* A disk that can only be read still opens files for that. */
  int counts = !(control && control->error == EROFS) || (flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != O_RDONLY;
  if (counts && fails('o', file)) return -1;
  return real(path, flags, mode);
}
#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
    va_end(more); \
    return opened(path, flags, mode, #name); \
  }
OPEN(open)
OPEN(open64)

int rename(const char *from, const char *to) {
  REAL(int, "rename", const char *, const char *);
  return fails('n', kind_of_path(to)) ? -1 : real(from, to);
}

int unlink(const char *path) {
  REAL(int, "unlink", const char *);
  return fails('u', kind_of_path(path)) ? -1 : real(path);
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found) {
  REAL(int, "getaddrinfo", const char *, const char *, const struct addrinfo *, struct addrinfo **);
  return fails('g', 'x') ? EAI_AGAIN : real(host, port, hints, found);
}
