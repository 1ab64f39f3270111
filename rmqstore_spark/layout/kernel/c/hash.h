/* Java's String.hashCode of UTF-8 texts. Part of kernel.c. */
#ifndef RMQSTORE_HASH_H
#define RMQSTORE_HASH_H

#define P2 961u /* powers of 31, modulo 2**32 */
#define P3 29791u
#define P4 923521u
#define P5 28629151u
#define P6 887503681u
#define P7 1742810335u
#define P8 2487512833u

/* Continue the hash h with a text. Invalid UTF-8 counts as U+FFFD, as Java decodes it. */
static uint32_t hash_on(uint32_t h, const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        uint64_t ahead;
        if (end - p >= 8 && (memcpy(&ahead, p, 8), (ahead & 0x8080808080808080u) == 0)) {
            h = h * P8 + (p[0] * P7 + p[1] * P6 + p[2] * P5 + p[3] * P4) +
                (p[4] * P3 + p[5] * P2 + p[6] * 31u + p[7]);
            p += 8;
            continue;
        }
        int step = utf8_step(p, end);
        if (step == 1)
            h = h * 31 + p[0];
        else if (step == 2)
            h = h * 31 + ((p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu));
        else if (step == 3)
            h = h * 31 + ((p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu));
        else if (step == 4) {
            uint32_t c = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 |
                         (p[3] & 0x3Fu);
            h = h * 31 + (0xD7C0u + (c >> 10)); /* a surrogate pair */
            h = h * 31 + (0xDC00u + (c & 0x3FFu));
        } else
            h = h * 31 + 0xFFFDu;
        p += step > 0 ? step : -step;
    }
    return h;
}

static PyObject *hash_texts(PyObject *self, PyObject *args)
{
    PyObject *o[3];
    if (!PyArg_ParseTuple(args, "OOO", &o[0], &o[1], &o[2]))
        return NULL;
    Views views = {.used = 0};
    TAKE(offsets, const int64_t, o[0], 0)
    TAKE(data, const uint8_t, o[1], 0)
    TAKE(out, int32_t, o[2], 1)
    Py_ssize_t i = 0;
    REQUIRE(offsets_n == out_n + 1, "the arrays differ in number")
    Py_BEGIN_ALLOW_THREADS
    for (; i < out_n; i++) {
        int64_t from = offsets[i], to = offsets[i + 1];
        if (from < 0 || from > to || to > data_n)
            break;
        out[i] = (int32_t)hash_on(0, data + from, data + to);
    }
    Py_END_ALLOW_THREADS
    REQUIRE(i == out_n, OUTSIDE)
    release(&views);
    Py_RETURN_NONE;
}

#endif
