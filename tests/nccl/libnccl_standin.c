/* Stands for libnccl.so.2 where there is no GPU: NCCL's interface, on the memory of the host.
 *
 * Ranks meet in a file that the unique id names, in the folder of NBMN_NCCL_STANDIN, and exchange
 * data through it in chunks. A stream is a thread that does what was enqueued, in order, so that
 * calls return before their work is done, as on a device. Faults are ordered by the functions
 * standin_* below.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define MOST_RANKS 8
#define CHUNK (256 << 10)
#define MAIL (64 << 10)
#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { SUM, PROD, MAX, MIN, AVG };
enum { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, SEND, RECV, WORK };

typedef struct { char internal[128]; } ncclUniqueId;

typedef struct {
  _Atomic int joined[MOST_RANKS];
  _Atomic uint64_t steps[MOST_RANKS];
  _Atomic uint64_t filled[MOST_RANKS][MOST_RANKS], emptied[MOST_RANKS][MOST_RANKS];
  char slots[MOST_RANKS][CHUNK];
  char mail[MOST_RANKS][MOST_RANKS][MAIL];
} Meeting;

typedef struct Comm {
  Meeting *meeting;
  int rank, size, blocking;
  _Atomic int ready, aborted, error, pending;
  uint64_t step;
} *ncclComm_t;

typedef struct Op {
  int kind, type, how, root;
  const char *send;
  char *recv;
  size_t count;
  ncclComm_t comm;
  int milliseconds;
} Op;

typedef struct Job {
  Op *ops;
  int count;
  struct Job *next;
} Job;

typedef struct Stream {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  Job *first, *last;
  _Atomic uint64_t submitted, completed;
} *Stream;

/* Faults that are ordered, and what happened; of this process. */
static _Atomic int fail_after = -1, fail_with, never_arrive, refuse_with;
static _Atomic int states_in_progress, calls_in_progress, abort_ms, blocked;
static _Atomic int inits, aborts, destroys, operations;

EXPORT void standin_fail(int after, int status) { fail_with = status; fail_after = after; }
EXPORT void standin_never_arrive(int yes) { never_arrive = yes; }
EXPORT void standin_refuse(int status) { refuse_with = status; }
EXPORT void standin_in_progress(int states, int calls) {
  states_in_progress = states;
  calls_in_progress = calls;
}
EXPORT void standin_slow_abort(int milliseconds) { abort_ms = milliseconds; }
EXPORT void standin_block(int yes) { blocked = yes; } /* calls that begin an operation */
EXPORT int standin_inits(void) { return inits; }
EXPORT int standin_aborts(void) { return aborts; }
EXPORT int standin_destroys(void) { return destroys; }
EXPORT int standin_operations(void) { return operations; }

/* What happened until the very end, where Python can no longer say it. */
__attribute__((destructor)) static void report(void) {
  const char *path = getenv("NBMN_NCCL_STANDIN_REPORT");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%d %d %d\n", inits, aborts, destroys);
  fclose(file);
}

/* Arithmetic */

static size_t size_of(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}

static float from_bfloat16(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define SAME(x) (x)
#define REDUCE_AS(TYPE, WIDE, LOAD, STORE)                              \
  for (size_t i = 0; i < count; i++) {                                  \
    WIDE total = LOAD(((const TYPE *)slots[0])[i]);                     \
    for (int r = 1; r < ranks; r++) {                                   \
      WIDE other = LOAD(((const TYPE *)slots[r])[i]);                   \
      if (how == SUM || how == AVG) total += other;                     \
      else if (how == PROD) total *= other;                             \
      else if (how == MAX) total = other > total ? other : total;       \
      else total = other < total ? other : total;                       \
    }                                                                   \
    if (how == AVG) total /= (WIDE)ranks;                               \
    ((TYPE *)into)[i] = STORE(total);                                   \
  }                                                                     \
  break

static void reduce_slots(void *into, char (*slots)[CHUNK], int ranks, size_t count, int type,
                         int how) {
  switch (type) {
    case 0: REDUCE_AS(int8_t, int8_t, SAME, SAME);
    case 1: REDUCE_AS(uint8_t, uint8_t, SAME, SAME);
    case 2: REDUCE_AS(int32_t, int32_t, SAME, SAME);
    case 3: REDUCE_AS(uint32_t, uint32_t, SAME, SAME);
    case 4: REDUCE_AS(int64_t, int64_t, SAME, SAME);
    case 5: REDUCE_AS(uint64_t, uint64_t, SAME, SAME);
    case 6: REDUCE_AS(_Float16, float, SAME, SAME);
    case 7: REDUCE_AS(float, float, SAME, SAME);
    case 8: REDUCE_AS(double, double, SAME, SAME);
    case 9: REDUCE_AS(uint16_t, float, from_bfloat16, to_bfloat16);
  }
}

/* Ranks together. They return 0 where the communicator was aborted. */

static int until(ncclComm_t comm, _Atomic uint64_t *value, uint64_t least) {
  for (int spins = 0; atomic_load(value) < least; spins++) {
    if (comm->aborted) return 0;
    if (spins > 1000) usleep(50);
  }
  return 1;
}

static int barrier(ncclComm_t comm) {
  if (comm->aborted) return 0; /* before this rank has anything to do with the others' */
  uint64_t step = ++comm->step;
  atomic_store(&comm->meeting->steps[comm->rank], step);
  for (int r = 0; r < comm->size; r++)
    if (!until(comm, &comm->meeting->steps[r], step)) return 0;
  return 1;
}

/* One round: some put what they have into their slots, and some take from all slots. */
static int collective(Op *op) {
  ncclComm_t comm = op->comm;
  char (*slots)[CHUNK] = comm->meeting->slots;
  size_t size = size_of(op->type), most = CHUNK / size;
  int parts = op->kind == REDUCE_SCATTER ? comm->size : 1;
  for (int part = 0; part < parts; part++)
    for (size_t at = 0; at < op->count; at += most) {
      size_t count = op->count - at < most ? op->count - at : most;
      int puts = op->kind != BROADCAST || comm->rank == op->root;
      if (puts)
        memcpy(slots[comm->rank], op->send + (part * op->count + at) * size, count * size);
      if (!barrier(comm)) return 0;
      char *into = op->recv + at * size;
      if (op->kind == ALL_REDUCE || (op->kind == REDUCE && comm->rank == op->root) ||
          (op->kind == REDUCE_SCATTER && comm->rank == part))
        reduce_slots(into, slots, comm->size, count, op->type, op->how);
      if (op->kind == BROADCAST) memcpy(into, slots[op->root], count * size);
      if (op->kind == ALL_GATHER)
        for (int r = 0; r < comm->size; r++)
          memcpy(into + r * op->count * size, slots[r], count * size);
      if (!barrier(comm)) return 0;
    }
  return 1;
}

/* All messages of a group together, as far as each can go: ranks may send before they receive. */
static int messages(Op *ops, int count) {
  size_t done[64] = {0};
  for (int left = 1; left;) {
    left = 0;
    for (int i = 0; i < count; i++) {
      Op *op = &ops[i];
      if (op->kind != SEND && op->kind != RECV) continue;
      size_t bytes = op->count * size_of(op->type);
      if (done[i] >= bytes) continue;
      left = 1;
      if (op->comm->aborted) return 0;
      int sends = op->kind == SEND, here = op->comm->rank, there = op->root;
      int from = sends ? here : there, to = sends ? there : here;
      Meeting *meeting = op->comm->meeting;
      _Atomic uint64_t *filled = &meeting->filled[from][to], *emptied = &meeting->emptied[from][to];
      size_t piece = bytes - done[i] < MAIL ? bytes - done[i] : MAIL;
      char *mail = meeting->mail[from][to];
      if (sends && atomic_load(filled) == atomic_load(emptied)) {
        memcpy(mail, op->send + done[i], piece);
        atomic_fetch_add(filled, 1);
        done[i] += piece;
      } else if (!sends && atomic_load(filled) > atomic_load(emptied)) {
        memcpy(op->recv + done[i], mail, piece);
        atomic_fetch_add(emptied, 1);
        done[i] += piece;
      }
    }
    if (left) sched_yield();
  }
  return 1;
}

static int fails(ncclComm_t comm) {
  if (fail_after < 0 || atomic_fetch_sub(&fail_after, 1) != 0) return 0;
  comm->error = fail_with;
  while (!comm->aborted) usleep(200); /* it never completes */
  return 1;
}

static void run(Job *job) {
  int good = 1;
  for (int i = 0; i < job->count && good; i++) {
    Op *op = &job->ops[i];
    if (op->kind == WORK) usleep(1000 * op->milliseconds);
    else good = !fails(op->comm) && (op->kind >= SEND || collective(op));
  }
  if (good) messages(job->ops, job->count);
  for (int i = 0; i < job->count; i++)
    if (job->ops[i].comm) job->ops[i].comm->pending--;
}

/* Streams */

static void *work(void *argument) {
  Stream stream = argument;
  for (;;) {
    pthread_mutex_lock(&stream->lock);
    while (!stream->first) pthread_cond_wait(&stream->wake, &stream->lock);
    Job *job = stream->first;
    stream->first = job->next;
    if (!stream->first) stream->last = NULL;
    pthread_mutex_unlock(&stream->lock);
    run(job);
    stream->completed++;
    free(job->ops);
    free(job);
  }
  return NULL;
}

EXPORT Stream standin_stream(void) {
  Stream stream = calloc(1, sizeof *stream);
  pthread_mutex_init(&stream->lock, NULL);
  pthread_cond_init(&stream->wake, NULL);
  pthread_t thread;
  pthread_create(&thread, NULL, work, stream);
  pthread_detach(thread);
  return stream;
}

static Stream default_stream;
static void make_default(void) { default_stream = standin_stream(); }

static void submit(Stream stream, const Op *ops, int count) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (!stream) {
    pthread_once(&once, make_default);
    stream = default_stream;
  }
  Job *job = calloc(1, sizeof *job);
  job->ops = malloc(count * sizeof *ops);
  job->count = count;
  memcpy(job->ops, ops, count * sizeof *ops);
  pthread_mutex_lock(&stream->lock);
  if (stream->last) stream->last->next = job;
  else stream->first = job;
  stream->last = job;
  stream->submitted++;
  pthread_cond_signal(&stream->wake);
  pthread_mutex_unlock(&stream->lock);
}

EXPORT uint64_t standin_record(Stream stream) { return stream->submitted; }
EXPORT int standin_reached(Stream stream, uint64_t ticket) { return stream->completed >= ticket; }
EXPORT void standin_kernel(Stream stream, int milliseconds) {
  Op op = {.kind = WORK, .milliseconds = milliseconds};
  submit(stream, &op, 1);
}

/* NCCL */

EXPORT int ncclGetVersion(int *version) {
  const char *given = getenv("NBMN_NCCL_STANDIN_VERSION");
  *version = given ? atoi(given) : 22707;
  return SUCCESS;
}

EXPORT int ncclGetUniqueId(ncclUniqueId *id) {
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random) return SYSTEM_ERROR;
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "%016lx", (unsigned long)random);
  id->internal[127] = (char)0xff; /* not only text */
  return SUCCESS;
}

typedef struct { ncclComm_t comm; ncclUniqueId id; } Arrival;

static int arrive(ncclComm_t comm, const ncclUniqueId *id) {
  while (never_arrive) usleep(1000);
  char path[PATH_MAX];
  const char *folder = getenv("NBMN_NCCL_STANDIN");
  snprintf(path, sizeof path, "%s/%.32s", folder ? folder : "/tmp", id->internal);
  int file = open(path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Meeting))) return SYSTEM_ERROR;
  Meeting *meeting = mmap(NULL, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (meeting == MAP_FAILED) return SYSTEM_ERROR;
  comm->meeting = meeting;
  if (atomic_exchange(&meeting->joined[comm->rank], 1)) return INVALID_USAGE; /* an id used twice */
  for (int r = 0; r < comm->size; r++)
    while (!meeting->joined[r]) {
      if (comm->aborted) return SUCCESS;
      usleep(200);
    }
  comm->ready = 1;
  return SUCCESS;
}

static void *arrive_later(void *argument) {
  Arrival *arrival = argument;
  int status = arrive(arrival->comm, &arrival->id);
  if (status) arrival->comm->error = status;
  free(arrival);
  return NULL;
}

static int initialise(ncclComm_t *made, int size, ncclUniqueId id, int rank, int blocking) {
  if (rank < 0 || rank >= size || size > MOST_RANKS) return INVALID_ARGUMENT;
  inits++;
  if (refuse_with) return refuse_with;
  ncclComm_t comm = *made = calloc(1, sizeof *comm);
  comm->rank = rank;
  comm->size = size;
  comm->blocking = blocking;
  if (blocking) return arrive(comm, &id);
  Arrival *arrival = malloc(sizeof *arrival);
  arrival->comm = comm;
  arrival->id = id;
  pthread_t thread;
  pthread_create(&thread, NULL, arrive_later, arrival);
  pthread_detach(thread);
  return IN_PROGRESS;
}

EXPORT int ncclCommInitRank(ncclComm_t *made, int size, ncclUniqueId id, int rank) {
  return initialise(made, size, id, rank, 1);
}

EXPORT int ncclCommInitRankConfig(ncclComm_t *made, int size, ncclUniqueId id, int rank,
                                  const int *config) {
  /* size_t size; unsigned magic, version; int blocking, unset or 0 or 1 */
  const char *forced = getenv("NCCL_COMM_BLOCKING");
  int blocking = forced ? atoi(forced) : !config || config[4] != 0;
  return initialise(made, size, id, rank, blocking);
}

EXPORT int ncclCommInitAll(ncclComm_t *made, int count, const int *devices) {
  return INVALID_USAGE;
}

EXPORT int ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, void *config) {
  return INVALID_USAGE;
}

EXPORT int ncclCommGetAsyncError(ncclComm_t comm, int *error) {
  int pretends = states_in_progress > 0 && atomic_fetch_sub(&states_in_progress, 1) > 0;
  *error = comm->error ? comm->error : !comm->ready || pretends ? IN_PROGRESS : SUCCESS;
  return SUCCESS;
}

EXPORT int ncclCommAbort(ncclComm_t comm) {
  aborts++;
  usleep(1000 * abort_ms);
  comm->aborted = 1;
  while (comm->pending) usleep(200); /* its kernels end */
  return SUCCESS;
}

EXPORT int ncclCommFinalize(ncclComm_t comm) { return SUCCESS; }

EXPORT int ncclCommDestroy(ncclComm_t comm) {
  destroys++;
  while (comm->pending) usleep(200);
  if (comm->meeting) munmap(comm->meeting, sizeof(Meeting));
  comm->meeting = NULL;
  return SUCCESS;
}

EXPORT int ncclCommCount(ncclComm_t comm, int *count) { return *count = comm->size, SUCCESS; }
EXPORT int ncclCommUserRank(ncclComm_t comm, int *rank) { return *rank = comm->rank, SUCCESS; }
EXPORT int ncclCommCuDevice(ncclComm_t comm, int *device) { return *device = 0, SUCCESS; }

static _Thread_local int depth, grouped;
static _Thread_local Op group[64];
static _Thread_local Stream group_stream;

static int answer(void) {
  return calls_in_progress > 0 && atomic_fetch_sub(&calls_in_progress, 1) > 0 ? IN_PROGRESS
                                                                               : SUCCESS;
}

EXPORT int ncclGroupStart(void) { return depth++, SUCCESS; }

EXPORT int ncclGroupEnd(void) {
  if (!depth) return INVALID_USAGE;
  if (--depth || !grouped) return SUCCESS;
  submit(group_stream, group, grouped);
  grouped = 0;
  return answer();
}

static int begin(Op op, Stream stream) {
  while (blocked) usleep(1000);
  if (!op.comm || !op.comm->ready || op.comm->aborted) return INVALID_ARGUMENT;
  if (op.type < 0 || op.type > 9) return INVALID_ARGUMENT;
  op.comm->pending++;
  operations++;
  if (!depth) return submit(stream, &op, 1), answer();
  if (grouped == 64) return INVALID_USAGE;
  group_stream = stream;
  group[grouped++] = op;
  return SUCCESS;
}

EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int how,
                         ncclComm_t comm, Stream stream) {
  return begin((Op){ALL_REDUCE, type, how, 0, send, recv, count, comm}, stream);
}
EXPORT int ncclReduce(const void *send, void *recv, size_t count, int type, int how, int root,
                      ncclComm_t comm, Stream stream) {
  return begin((Op){REDUCE, type, how, root, send, recv, count, comm}, stream);
}
EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root,
                         ncclComm_t comm, Stream stream) {
  return begin((Op){BROADCAST, type, 0, root, send, recv, count, comm}, stream);
}
EXPORT int ncclBcast(void *data, size_t count, int type, int root, ncclComm_t comm,
                     Stream stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}
EXPORT int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int how,
                             ncclComm_t comm, Stream stream) {
  return begin((Op){REDUCE_SCATTER, type, how, 0, send, recv, count, comm}, stream);
}
EXPORT int ncclAllGather(const void *send, void *recv, size_t count, int type, ncclComm_t comm,
                         Stream stream) {
  return begin((Op){ALL_GATHER, type, 0, 0, send, recv, count, comm}, stream);
}
EXPORT int ncclSend(const void *send, size_t count, int type, int peer, ncclComm_t comm,
                    Stream stream) {
  return begin((Op){SEND, type, 0, peer, send, NULL, count, comm}, stream);
}
EXPORT int ncclRecv(void *recv, size_t count, int type, int peer, ncclComm_t comm,
                    Stream stream) {
  return begin((Op){RECV, type, 0, peer, NULL, recv, count, comm}, stream);
}

EXPORT const char *ncclGetErrorString(int status) {
  static const char *const texts[] = {
      "no error",         "unhandled cuda error", "unhandled system error",
      "internal error",   "invalid argument",     "invalid usage",
      "remote process exited or there was a network error", "NCCL operation in progress",
      "timed out"};
  return status >= 0 && status < 9 ? texts[status] : "unknown result code";
}
EXPORT const char *ncclGetLastError(ncclComm_t comm) { return "none kept"; }
