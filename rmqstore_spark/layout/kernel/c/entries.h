/* Splits ConsumeQueue entries, and picks those that a consumer gets. Part of kernel.c. */

#define ENTRY 20 /* physicalOffset 8, size 4, tagsCode 8 */
#define FILLER 2147483647
#define VOID 9223372036854775807LL /* the tagsCode of a void entry */

static PyObject *split_entries(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, o[0], 0)
    TAKE(offsets, int64_t, o[1], 1)
    TAKE(sizes, int32_t, o[2], 1)
    TAKE(codes, int64_t, o[3], 1)
    Py_ssize_t n = offsets_n;
    REQUIRE(n <= data_n / ENTRY && sizes_n == n && codes_n == n, SMALL)
    int dead = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        const uint8_t *p = data + ENTRY * i;
        offsets[i] = (int64_t)be64(p);
        sizes[i] = (int32_t)be32(p + 8);
        codes[i] = (int64_t)be64(p + 12);
        dead |= (offsets[i] < 0) | (sizes[i] <= 0) | (codes[i] == VOID) |
                ((sizes[i] == FILLER) & (offsets[i] == 0) & (codes[i] == 0));
    }
    Py_END_ALLOW_THREADS
    release(&views);
    return PyBool_FromLong(!dead);
}

#define UNITS (-2147483649LL) /* tagsCodes up to this one are addresses of extension units */
#define MAX_RECORD (1 << 24)

static int is_among(int32_t code, const int32_t *codes, Py_ssize_t n)
{
    Py_ssize_t low = 0;
    while (low < n) {
        Py_ssize_t middle = (low + n) / 2;
        if (codes[middle] == code)
            return 1;
        if (codes[middle] < code)
            low = middle + 1;
        else
            n = middle;
    }
    return 0;
}

static PyObject *pick_entries(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    long long begin, end, segment, old, most, most_bytes, most_old, most_old_bytes;
    if (!PyArg_ParseTuple(args, "OO(LLLL)(LLLL)OO", &o[0], &o[1], &begin, &end, &segment, &old,
                          &most, &most_bytes, &most_old, &most_old_bytes, &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, o[0], 0)
    const int32_t *codes = NULL;
    Py_ssize_t codes_n = 0;
    if (o[1] != Py_None) {
        TAKE(wanted, const int32_t, o[1], 0)
        codes = wanted;
        codes_n = wanted_n;
    }
    TAKE(places, int64_t, o[2], 1)
    TAKE(sizes, int32_t, o[3], 1)
    REQUIRE(places_n >= most && sizes_n >= most && most > 0, SMALL)
    REQUIRE(segment > 0, "a segment has no bytes")
    Py_ssize_t n = data_n / ENTRY, at = 0, count = 0;
    int64_t total = 0;
    int has_match = 0;
    for (; at < n && count < most; at++) {
        const uint8_t *p = data + ENTRY * at;
        int64_t place = (int64_t)be64(p), code = (int64_t)be64(p + 12);
        int64_t size = (int32_t)be32(p + 8);
        if (place < 0 || size <= 0 || code == VOID ||
            (size == FILLER && place == 0 && code == 0))
            continue;
        if (codes != NULL && code > UNITS && !is_among((int32_t)code, codes, codes_n))
            continue;
        has_match = 1;
        if (place < begin || place > end - size || place % segment > segment - size ||
            size < MIN_RECORD || size > MAX_RECORD)
            continue;
        int is_old = place < old;
        total += size;
        if (count > 0 && (total > (is_old ? most_old_bytes : most_bytes) ||
                          (is_old && count >= most_old)))
            break;
        places[count] = place;
        sizes[count++] = (int32_t)size;
    }
    release(&views);
    return Py_BuildValue("nni", count, at, has_match);
}
