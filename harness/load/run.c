/* A run of ordinary tokens: the compiled half of run.py, which says what it is for. */

#include "run.h"

#include <structmember.h>

#include "event.h"

/* Counts are -1 where they were not told, and so is the lag of an arrival without a stamp. */
struct Token {
    int64_t t, lag;
    int32_t size, ids, used, prompt;
};

static int number_of(PyObject *object, int64_t *number) {
    *number = object == Py_None ? -1 : PyLong_AsLongLong(object);
    return *number != -1 || !PyErr_Occurred();
}

static PyObject *object_of(int64_t number) {
    return number < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(number);
}

int run_add(Run *self, int64_t t, int64_t lag, const char *data, Py_ssize_t size) {
    Found found;
    if (size > INT32_MAX || !ordinary(data, size, &found)) return 0;
    if (self->length == self->room) {
        Py_ssize_t room = 2 * self->room + 32;
        Token *tokens = PyMem_Realloc(self->tokens, room * sizeof(Token));
        if (!tokens) {
            PyErr_NoMemory();
            return -1;
        }
        self->tokens = tokens;
        self->room = room;
    }
    self->tokens[self->length++] = (Token){
        .t = t, .lag = lag, .size = size - BEFORE - AFTER, .ids = found.ids > 0 ? found.ids : -1, .used = found.used,
        .prompt = found.prompt};
    return 1;
}

/* take(t, lag, data): is this an ordinary event? Then it is kept. */
static PyObject *run_take(Run *self, PyObject *const *args, Py_ssize_t count) {
    int64_t t, lag;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "take() takes 3 arguments, not %zd", count);
    if (!PyBytes_Check(args[2])) return PyErr_Format(PyExc_TypeError, "bytes are taken, not %.100s", Py_TYPE(args[2])->tp_name);
    if (!number_of(args[0], &t) || !number_of(args[1], &lag)) return NULL;
    int added = run_add(self, t, lag, PyBytes_AS_STRING(args[2]), PyBytes_GET_SIZE(args[2]));
    return added < 0 ? NULL : PyBool_FromLong(added);
}

/* The columns of `fold`: one value a token. */
typedef struct {
    PyObject *t, *lag, *tokens, *size;
} Columns;

static int make_columns(Columns *made, Py_ssize_t length) {
    made->t = PyBytes_FromStringAndSize(NULL, length * sizeof(int64_t));
    made->lag = PyBytes_FromStringAndSize(NULL, length * sizeof(int64_t));
    made->tokens = PyBytes_FromStringAndSize(NULL, length * sizeof(int32_t));
    made->size = PyBytes_FromStringAndSize(NULL, length * sizeof(int32_t));
    if (made->t && made->lag && made->tokens && made->size) return 1;
    Py_XDECREF(made->t);
    Py_XDECREF(made->lag);
    Py_XDECREF(made->tokens);
    Py_XDECREF(made->size);
    return 0;
}

/* fold(last, ids, used, continuous): what the run adds to an answer that stands so (`CompletionReader`), and the run is empty. */
static PyObject *run_fold(Run *self, PyObject *const *args, Py_ssize_t count) {
    int64_t last, ids, used, continuous, in_first = -1, prompt = -1, coalesced = 0, told = 0;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "fold() takes 4 arguments, not %zd", count);
    if (!number_of(args[0], &last) || !number_of(args[1], &ids) || !number_of(args[2], &used)
        || !number_of(args[3], &continuous))
        return NULL;
    int none_yet = args[0] == Py_None;
    Columns made;
    if (!make_columns(&made, self->length)) return NULL;
    int64_t *t = (int64_t *)PyBytes_AS_STRING(made.t), *lag = (int64_t *)PyBytes_AS_STRING(made.lag);
    int32_t *tokens = (int32_t *)PyBytes_AS_STRING(made.tokens), *size = (int32_t *)PyBytes_AS_STRING(made.size);
    for (Py_ssize_t i = 0; i < self->length; i++) {
        const Token *token = &self->tokens[i];
        int64_t own = token->ids;
        if (token->used >= 0) {
            if (own < 0 && continuous != 0 && token->used > used) own = token->used - used;
            used = token->used;
            prompt = token->prompt;
            told = 1;
        }
        if (none_yet) {
            none_yet = 0;
            in_first = own;
            ids = token->ids;
            continuous = token->used >= 0 && own >= 0;
        } else {
            coalesced += last == token->t;
            ids = ids < 0 || token->ids < 0 ? -1 : ids + token->ids;
            if (token->used < 0) continuous = 0;
        }
        last = token->t;
        t[i] = token->t;
        lag[i] = token->lag;
        tokens[i] = (int32_t)own;
        size[i] = token->size;
    }
    self->length = 0;
    PyObject *all = PyBool_FromLong(continuous > 0), *usage = PyBool_FromLong(told > 0);
    return Py_BuildValue("(NNNN)(NLNLNNN)", made.t, made.lag, made.tokens, made.size, object_of(in_first), (long long)coalesced,
                         object_of(ids), (long long)used, all, usage, object_of(prompt));
}

static Py_ssize_t run_length(Run *self) {
    return self->length;
}

static void run_dealloc(Run *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->tokens);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"take", (PyCFunction)(void (*)(void))run_take, METH_FASTCALL, NULL},
    {"fold", (PyCFunction)(void (*)(void))run_fold, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {{"read", T_LONGLONG, offsetof(Run, read), READONLY, NULL}, {NULL, 0, 0, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_doc, "See harness/load/run.py."}, {Py_tp_dealloc, run_dealloc}, {Py_tp_methods, methods},
    {Py_tp_members, members},                {Py_sq_length, run_length},      {0, NULL},
};

PyType_Spec run_spec = {
    .name = "harness.load._reader.Run", .basicsize = sizeof(Run), .flags = Py_TPFLAGS_DEFAULT, .slots = slots};
