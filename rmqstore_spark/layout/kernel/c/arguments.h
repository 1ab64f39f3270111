/* Takes the arrays of the kernel's functions, and checks their bounds. Part of kernel.c. */
#ifndef RMQSTORE_ARGUMENTS_H
#define RMQSTORE_ARGUMENTS_H

typedef struct {
    Py_buffer view[20];
    int used;
} Views;

static void release(Views *views)
{
    while (views->used > 0)
        PyBuffer_Release(&views->view[--views->used]);
}

static void *take(Views *views, PyObject *object, Py_ssize_t item, int writable, Py_ssize_t *count)
{
    Py_buffer *view = &views->view[views->used];
    int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return NULL;
    views->used++;
    if (view->len % item) {
        PyErr_SetString(PyExc_ValueError, "array of another item size than expected");
        return NULL;
    }
    *count = view->len / item;
    return view->buf ? view->buf : (void *)"";
}

#define TAKE(name, type, object, writable)                                          \
    Py_ssize_t name##_n;                                                            \
    type *name = take(&views, object, sizeof(type), writable, &name##_n);           \
    if (name == NULL) {                                                             \
        release(&views);                                                            \
        return NULL;                                                                \
    }

#define REQUIRE(condition, text)                        \
    if (!(condition)) {                                 \
        release(&views);                                \
        PyErr_SetString(PyExc_ValueError, text);        \
        return NULL;                                    \
    }

/* Around a loop that may be very short. Waiting to get the interpreter lock back from another
 * thread costs tens of microseconds, so a short loop keeps the lock. */
#define SOME_ROWS 64
#define LONG_BLOCK 32768 /* bytes */
#define BEGIN_LOOP(size, least)                                                 \
    {                                                                           \
        PyThreadState *released = (size) >= (least) ? PyEval_SaveThread() : NULL;
#define END_LOOP                                                                \
        if (released)                                                           \
            PyEval_RestoreThread(released);                                     \
    }

static int inside(int64_t start, int64_t length, Py_ssize_t size)
{
    return start >= 0 && length >= 0 && length <= size && start <= size - length;
}

static int all_inside(const int64_t *starts, const int32_t *lengths, Py_ssize_t n, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (lengths[i] > 0 && !inside(starts[i], lengths[i], size))
            return 0;
    return 1;
}

/* Like memcpy. Most spans are short, and calling it would cost more than the copy itself. */
static inline void copy(uint8_t *to, const uint8_t *from, size_t n)
{
    uint64_t a[2], b[2];
    uint32_t c, d;
    if (n > 32) {
        memcpy(to, from, n);
    } else if (n >= 16) {
        memcpy(a, from, 16);
        memcpy(b, from + n - 16, 16);
        memcpy(to, a, 16);
        memcpy(to + n - 16, b, 16);
    } else if (n >= 8) {
        memcpy(a, from, 8);
        memcpy(b, from + n - 8, 8);
        memcpy(to, a, 8);
        memcpy(to + n - 8, b, 8);
    } else if (n >= 4) {
        memcpy(&c, from, 4);
        memcpy(&d, from + n - 4, 4);
        memcpy(to, &c, 4);
        memcpy(to + n - 4, &d, 4);
    } else {
        while (n--)
            *to++ = *from++;
    }
}

/* Whether two spans hold the same bytes. Short spans avoid the call to memcmp. */
static inline int equal(const uint8_t *p, const uint8_t *q, size_t n)
{
    uint64_t a[2], b[2];
    uint32_t c[2], d[2];
    if (n > 16)
        return memcmp(p, q, n) == 0;
    if (n >= 8) {
        memcpy(&a[0], p, 8);
        memcpy(&a[1], p + n - 8, 8);
        memcpy(&b[0], q, 8);
        memcpy(&b[1], q + n - 8, 8);
        return a[0] == b[0] && a[1] == b[1];
    }
    if (n >= 4) {
        memcpy(&c[0], p, 4);
        memcpy(&c[1], p + n - 4, 4);
        memcpy(&d[0], q, 4);
        memcpy(&d[1], q + n - 4, 4);
        return c[0] == d[0] && c[1] == d[1];
    }
    while (n > 0 && *p == *q)
        p++, q++, n--;
    return n == 0;
}

#define OUTSIDE "a span lies outside its buffer"
#define SMALL "an output array is too small"

#endif
