/* Reads the ordinary tokens of a load: the compiled half of reader.py, which says what it is for.

   An armed descriptor belongs to a connection that is between two chunks of its answer. Of such a descriptor, one read that
   holds nothing but whole chunks is ordinary. A chunk that is the event of a token and nothing else is kept in the exchange's
   `run`. Any other goes to the backlog as (exchange, arrival, lag, data), behind the run so far. Whatever else is read is handed
   back: it is put into the connection's `taken`, the descriptor is no longer armed, and it is reported as ready, so that
   connection.py goes on with it.

   A round calls nothing of the client's but the backlog's `append`. Python may run in it all the same (a signal's handler, a
   finalizer), and may close connections and open others. So where it may, what is read is held by references of its own, a
   descriptor is read for whom it is armed by then, and one that is closed by then is reported, for which connection.py's poller
   has no handler any more. */

#include "run.h"

#include <structmember.h>

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

enum {
    FORM = 3,           /* of what Python sees of it, as in compiled.py */
    STAMP = 35,         /* SO_TIMESTAMPNS, and the type of its control message, as in stamps.py */
    EVENTS = 4096,      /* reported by one look */
    LOOK_AFTER = 16,    /* sockets are read before it is seen whether a request has become due */
    SIZE_DIGITS = 8,    /* of a chunk */
};
#define NS_PER_S 1000000000LL
typedef long long ns;

typedef struct {
    PyObject *connection, *exchange; /* NULL where the descriptor is not armed */
    Run *run;                        /* the exchange's, or NULL */
    ns last;                         /* arrival on the connection, which never goes back */
    int events, whole;               /* its answer is an event stream, and what came so far ended with an event */
} Armed;

typedef struct {
    PyObject_HEAD
    PyObject *append; /* of the backlog */
    Armed *armed;     /* by descriptor */
    Py_ssize_t descriptors;
    char *buffer;
    Py_ssize_t read_size;
    ns slack;
    int epoll;
    ns looked, began, reads, size, pieces;
    char idle;
    struct epoll_event events[EVENTS];
} Reader;

static PyObject *name_last, *name_last_read, *name_run, *name_taken;
static PyObject *run_type;

static ns clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static struct timespec timespec_of(ns time) {
    return (struct timespec){.tv_sec = time / NS_PER_S, .tv_nsec = time % NS_PER_S};
}

/* When a read was made, and when its data arrived; `late` is -1 where the kernel did not stamp it. */
typedef struct {
    ns now, arrived, late;
} Stamp;

/* ---- Armed descriptors ----------------------------------------------------------------------------------------- */

static void disarm(Reader *self, long fd) {
    if (fd < 0 || fd >= self->descriptors) return;
    Py_CLEAR(self->armed[fd].connection);
    Py_CLEAR(self->armed[fd].exchange);
    Py_CLEAR(self->armed[fd].run);
}

static PyObject *reader_arm(Reader *self, PyObject *args) {
    int fd, events, whole;
    PyObject *connection, *exchange;
    if (!PyArg_ParseTuple(args, "iOOpp:arm", &fd, &connection, &exchange, &events, &whole)) return NULL;
    if (fd < 0) return PyErr_Format(PyExc_ValueError, "%d is no descriptor", fd);
    if (fd >= self->descriptors) {
        Py_ssize_t descriptors = 2 * (Py_ssize_t)fd + 64;
        Armed *armed = PyMem_Realloc(self->armed, descriptors * sizeof(Armed));
        if (!armed) return PyErr_NoMemory();
        memset(armed + self->descriptors, 0, (descriptors - self->descriptors) * sizeof(Armed));
        self->armed = armed;
        self->descriptors = descriptors;
    }
    PyObject *last = PyObject_GetAttr(connection, name_last);
    ns before = last ? PyLong_AsLongLong(last) : -1;
    Py_XDECREF(last);
    if (before == -1 && PyErr_Occurred()) return NULL;
    PyObject *run = PyObject_GetAttr(exchange, name_run);
    if (!run) return NULL;
    if (!Py_IS_TYPE(run, (PyTypeObject *)run_type)) Py_CLEAR(run);
    disarm(self, fd);
    self->armed[fd] = (Armed){Py_NewRef(connection), Py_NewRef(exchange), (Run *)run, before, events, whole};
    Py_RETURN_NONE;
}

static PyObject *reader_disarm(Reader *self, PyObject *fd) {
    long number = PyLong_AsLong(fd);
    if (number == -1 && PyErr_Occurred()) return NULL;
    disarm(self, number);
    Py_RETURN_NONE;
}

/* ---- One read -------------------------------------------------------------------------------------------------- */

/* The data of the chunk that begins at `*at`, which is moved behind it; NULL where it is not whole, well-formed and not empty. */
static const char *next_chunk(const char **at, const char *end, Py_ssize_t *length) {
    const char *c = *at;
    Py_ssize_t size = 0;
    for (; c < end && c - *at < SIZE_DIGITS; c++) {
        int digit = *c >= '0' && *c <= '9' ? *c - '0' : (*c | 32) >= 'a' && (*c | 32) <= 'f' ? (*c | 32) - 'a' + 10 : -1;
        if (digit < 0) break;
        size = size * 16 + digit;
    }
    if (end - c < 2 || c[0] != '\r' || c[1] != '\n') return NULL;
    c += 2;
    if (!size || size > end - c - 2 || c[size] != '\r' || c[size + 1] != '\n') return NULL;
    *length = size;
    *at = c + size + 2;
    return c;
}

static int only_chunks(const char *at, const char *end) {
    Py_ssize_t length;
    while (at < end)
        if (!next_chunk(&at, end, &length)) return 0;
    return 1;
}

/* Leave it to connection.py, which hears what was stamped last: 0, or -1 after an error. */
static int hand_back(PyObject *connection, ns arrived) {
    PyObject *last = PyLong_FromLongLong(arrived);
    int failed = !last || PyObject_SetAttr(connection, name_last, last) < 0;
    Py_XDECREF(last);
    return failed ? -1 : 0;
}

/* The same with what came of a read, or its OSError. `taken` is stolen, and may be NULL after an error. */
static int hand_back_with(PyObject *connection, ns arrived, PyObject *taken) {
    int failed = !taken || PyObject_SetAttr(connection, name_taken, taken) < 0 || hand_back(connection, arrived) < 0;
    Py_XDECREF(taken);
    return failed ? -1 : 0;
}

/* What was read, as connection.py reads it itself. NULL after an error. */
static PyObject *taken_of(const Reader *self, Py_ssize_t got, const struct cmsghdr *stamp, ns now) {
    PyObject *stamps = stamp ? Py_BuildValue("[(iiy#)]", SOL_SOCKET, STAMP, CMSG_DATA(stamp), (Py_ssize_t)sizeof(struct timespec))
                             : PyList_New(0);
    return stamps ? Py_BuildValue("(y#NL)", self->buffer, got, stamps, now) : NULL;
}

/* Tell the backlog: what came, or a run. `what` is stolen, and may be NULL after an error. */
static int append(Reader *self, PyObject *exchange, PyObject *t, PyObject *lag, PyObject *what) {
    PyObject *entry = what ? PyTuple_Pack(4, exchange, t, lag, what) : NULL;
    PyObject *done = entry ? PyObject_CallOneArg(self->append, entry) : NULL;
    Py_XDECREF(what);
    Py_XDECREF(entry);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The run ends here: it goes to the backlog before what comes next. */
static int end_run(Reader *self, Armed *of, PyObject *t, PyObject *lag) {
    if (!of->run) return 0;
    PyObject *run = (PyObject *)of->run;
    of->run = NULL;
    if (PyObject_SetAttr(of->exchange, name_run, Py_None) < 0) {
        Py_DECREF(run);
        return -1;
    }
    return append(self, of->exchange, t, lag, run);
}

/* Keep the event of a token: 1 when it was one, 0 when it was not, -1 after an error. Nothing of Python's runs meanwhile. */
static int keep_token(Armed *armed, const Stamp *stamp, const char *data, Py_ssize_t length) {
    if (!armed->events || !armed->whole) return 0;
    Run *run = armed->run ? armed->run : (Run *)PyObject_CallNoArgs(run_type);
    if (!run) return -1;
    int kept = run_add(run, stamp->arrived, stamp->late, data, length);
    if (kept > 0) run->read = stamp->now;
    if (armed->run) return kept;
    if (kept > 0 && PyObject_SetAttr(armed->exchange, name_run, (PyObject *)run) < 0) kept = -1;
    if (kept > 0) armed->run = run;
    else Py_DECREF(run);
    return kept;
}

/* Chunks of which the first is no token. */
static int keep_pieces(Reader *self, Armed *of, const Stamp *stamp, const char *at, const char *end) {
    PyObject *read = PyLong_FromLongLong(stamp->now), *t = PyLong_FromLongLong(stamp->arrived);
    PyObject *lag = stamp->late >= 0 ? PyLong_FromLongLong(stamp->late) : Py_NewRef(Py_None);
    int failed = !read || !t || !lag || PyObject_SetAttr(of->exchange, name_last_read, read) < 0;
    while (at < end && !failed) {
        Py_ssize_t length = 0;
        const char *data = next_chunk(&at, end, &length);
        int kept = keep_token(of, stamp, data, length);
        failed = kept < 0;
        if (kept) continue;
        failed = end_run(self, of, t, lag) < 0
                 || append(self, of->exchange, t, lag, PyBytes_FromStringAndSize(data, length)) < 0;
        self->size += length;
        self->pieces++;
        of->whole = length >= 2 && data[length - 1] == '\n' && data[length - 2] == '\n';
    }
    Py_XDECREF(read);
    Py_XDECREF(t);
    Py_XDECREF(lag);
    return failed ? -1 : 1;
}

/* The same, while Python may disarm the descriptor or arm it for others: how the exchange stands then is kept if it still can be. */
static int hold_and_keep_pieces(Reader *self, int fd, const Stamp *stamp, const char *at, const char *end) {
    Armed of = self->armed[fd];
    Py_INCREF(of.connection);
    Py_INCREF(of.exchange);
    Py_XINCREF(of.run);
    int done = keep_pieces(self, &of, stamp, at, end);
    Armed *armed = &self->armed[fd];
    if (armed->exchange == of.exchange) {
        armed->whole = of.whole;
        Py_XINCREF(of.run);
        Py_XSETREF(armed->run, of.run);
    }
    Py_DECREF(of.connection);
    Py_DECREF(of.exchange);
    Py_XDECREF(of.run);
    return done;
}

/* Keep what is whole chunks: 1, or -1 after an error. */
static int keep(Reader *self, int fd, const Stamp *stamp, Py_ssize_t got) {
    Armed *armed = &self->armed[fd];
    const char *at = self->buffer, *end = at + got;
    while (at < end) {
        Py_ssize_t length = 0;
        const char *from = at, *data = next_chunk(&at, end, &length);
        int kept = keep_token(armed, stamp, data, length);
        if (kept < 0) return -1;
        if (!kept) return hold_and_keep_pieces(self, fd, stamp, from, end);
    }
    return 1;
}

/* Read an armed descriptor: 1 when that was all, 0 when it is handed back, -1 after an error. */
static int read_armed(Reader *self, int fd, ns offset) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(struct timespec))];
    } control;
    struct iovec into = {self->buffer, self->read_size};
    struct msghdr message = {
        .msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    Py_ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 1;
    int error = got < 0 ? errno : 0;
    Stamp stamp = {.now = clock_now(), .late = -1};
    stamp.arrived = stamp.now;
    struct cmsghdr *header = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (header && (header->cmsg_level != SOL_SOCKET || header->cmsg_type != STAMP)) header = NULL;
    if (header) {
        struct timespec time;
        memcpy(&time, CMSG_DATA(header), sizeof time);
        stamp.arrived = time.tv_sec * NS_PER_S + time.tv_nsec - offset;
        stamp.late = stamp.now - stamp.arrived;
    }
    Armed *armed = &self->armed[fd];
    int possible = self->looked - self->slack <= stamp.arrived && stamp.arrived <= stamp.now;
    if (!error && possible && got && got < self->read_size && only_chunks(self->buffer, self->buffer + got)) {
        armed->last = stamp.arrived = stamp.arrived > armed->last ? stamp.arrived : armed->last;
        return keep(self, fd, &stamp, got);
    }
    /* To make objects may run Python (a collection, a finalizer), which may disarm the descriptor. */
    PyObject *connection = Py_NewRef(armed->connection);
    ns last = armed->last;
    int done = hand_back_with(connection, last, error ? PyObject_CallFunction(PyExc_OSError, "is", error, strerror(error))
                                                      : taken_of(self, got, header, stamp.now));
    Py_DECREF(connection);
    return done;
}

/* ---- Rounds ---------------------------------------------------------------------------------------------------- */

/* How many descriptors are ready, after `rest` and then at most `timeout`; -1 after an error. A signal ends both. */
static int look(Reader *self, ns rest, ns timeout) {
    int interrupted = 0;
    if (rest > 0) {
        struct timespec time = timespec_of(rest);
        Py_BEGIN_ALLOW_THREADS
        interrupted = nanosleep(&time, NULL) < 0;
        Py_END_ALLOW_THREADS
    }
    self->looked = self->began;
    self->began = clock_now();
    int ready = epoll_wait(self->epoll, self->events, EVENTS, 0);
    if (!ready && timeout > 0 && !interrupted) {
        /* An epoll can itself be waited for, by a call that counts in nanoseconds and not in milliseconds. */
        struct pollfd epoll = {.fd = self->epoll, .events = POLLIN};
        struct timespec time = timespec_of(timeout);
        Py_BEGIN_ALLOW_THREADS
        ready = ppoll(&epoll, 1, &time, NULL);
        Py_END_ALLOW_THREADS
        if (ready > 0) ready = epoll_wait(self->epoll, self->events, EVENTS, 0);
    }
    if (ready < 0 && errno != EINTR) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return PyErr_CheckSignals() < 0 ? -1 : ready < 0 ? 0 : ready;
}

/* Read what is ready; what is not ordinary is added to `others`. Stops after some reads when it is `due`. -1 after an error. */
static int read_round(Reader *self, int ready, PyObject *others, ns offset, ns due) {
    int stopped = ready == EVENTS; /* there may be more */
    for (int i = 0; i < ready; i++) {
        if (i && i % LOOK_AFTER == 0 && clock_now() >= due) {
            stopped = 1;
            break;
        }
        int fd = self->events[i].data.fd;
        unsigned mask = self->events[i].events;
        int done = 0;
        self->reads++;
        if (fd < self->descriptors && self->armed[fd].connection) {
            done = mask == EPOLLIN ? read_armed(self, fd, offset) : hand_back(self->armed[fd].connection, self->armed[fd].last);
            if (!done) disarm(self, fd);
        }
        if (done < 0) return -1;
        if (done) continue;
        PyObject *event = Py_BuildValue("(iI)", fd, mask);
        int added = event ? PyList_Append(others, event) : -1;
        Py_XDECREF(event);
        if (added < 0) return -1;
    }
    if (stopped) self->began = self->looked; /* what was not read may have come before this look */
    return 0;
}

static PyObject *reader_gather(Reader *self, PyObject *args) {
    ns offset, rest, timeout, until, due, most;
    if (!PyArg_ParseTuple(args, "LLLLLL:gather", &offset, &rest, &timeout, &until, &due, &most)) return NULL;
    PyObject *others = PyList_New(0);
    if (!others) return NULL;
    self->reads = self->size = self->pieces = 0;
    ns left;
    do {
        int ready = look(self, rest, timeout);
        self->idle = !ready;
        if (ready < 0 || read_round(self, ready, others, offset, due) < 0) {
            Py_DECREF(others);
            return NULL;
        }
        left = until - clock_now();
        if (left < timeout) timeout = left;
    } while (!self->idle && !PyList_GET_SIZE(others) && self->reads + self->pieces < most && left > 0);
    return others;
}

/* ---- The type -------------------------------------------------------------------------------------------------- */

static int reader_init(Reader *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"epoll", "append", "read_size", "slack", NULL};
    PyObject *append;
    if (self->buffer) {
        PyErr_SetString(PyExc_RuntimeError, "a reader is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOnL:Reader", names, &self->epoll, &append, &self->read_size, &self->slack))
        return -1;
    if (self->read_size <= 0) {
        PyErr_SetString(PyExc_ValueError, "read_size is a number of bytes");
        return -1;
    }
    self->buffer = PyMem_Malloc(self->read_size);
    if (!self->buffer) {
        PyErr_NoMemory();
        return -1;
    }
    self->append = Py_NewRef(append);
    self->looked = self->began = clock_now();
    return 0;
}

static int reader_traverse(Reader *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->append);
    for (Py_ssize_t fd = 0; fd < self->descriptors; fd++) {
        Py_VISIT(self->armed[fd].connection);
        Py_VISIT(self->armed[fd].exchange);
        Py_VISIT(self->armed[fd].run);
    }
    return 0;
}

static int reader_clear(Reader *self) {
    Py_CLEAR(self->append);
    for (Py_ssize_t fd = 0; fd < self->descriptors; fd++) disarm(self, fd);
    return 0;
}

static void reader_dealloc(Reader *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    reader_clear(self);
    PyMem_Free(self->armed);
    PyMem_Free(self->buffer);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"arm", (PyCFunction)reader_arm, METH_VARARGS, NULL},
    {"disarm", (PyCFunction)reader_disarm, METH_O, NULL},
    {"gather", (PyCFunction)reader_gather, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"looked", T_LONGLONG, offsetof(Reader, looked), READONLY, NULL},
    {"reads", T_LONGLONG, offsetof(Reader, reads), READONLY, NULL},
    {"size", T_LONGLONG, offsetof(Reader, size), READONLY, NULL},
    {"idle", T_BOOL, offsetof(Reader, idle), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "See harness/load/reader.py."}, {Py_tp_init, reader_init},  {Py_tp_traverse, reader_traverse},
    {Py_tp_clear, reader_clear},                {Py_tp_dealloc, reader_dealloc}, {Py_tp_methods, methods},
    {Py_tp_members, members},                   {0, NULL},
};

static PyType_Spec spec = {
    .name = "harness.load._reader.Reader",
    .basicsize = sizeof(Reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "harness.load._reader", .m_size = -1};

PyMODINIT_FUNC PyInit__reader(void) {
    name_last = PyUnicode_InternFromString("last");
    name_last_read = PyUnicode_InternFromString("last_read");
    name_run = PyUnicode_InternFromString("run");
    name_taken = PyUnicode_InternFromString("taken");
    run_type = PyType_FromSpec(&run_spec);
    if (!name_last || !name_last_read || !name_run || !name_taken || !run_type) return NULL;
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&spec), *name = PyUnicode_FromString("compiled");
    if (!made || !type || !name || PyObject_SetAttrString(type, "name", name) < 0
        || PyModule_AddIntConstant(made, "form", FORM) < 0 || PyModule_AddObjectRef(made, "Reader", type) < 0
        || PyModule_AddObjectRef(made, "Run", run_type) < 0)
        Py_CLEAR(made);
    Py_XDECREF(type);
    Py_XDECREF(name);
    return made;
}
