/* Ordinary tokens one after the other, as numbers. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

typedef struct Token Token;

typedef struct {
    PyObject_HEAD
    Token *tokens;
    Py_ssize_t length, room;
    long long read; /* when the last of them was, by who read it */
} Run;

extern PyType_Spec run_spec;

/* Is this an ordinary event? Then it is kept. -1 after an error. */
int run_add(Run *self, int64_t t, int64_t lag, const char *data, Py_ssize_t size);
