/* Properties, taken apart and looked up. Part of _kernel.c. */
#ifndef RMQSTORE_PROPERTIES_H
#define RMQSTORE_PROPERTIES_H

#define MOST_NAMES 8 /* that are looked for at once */

typedef struct {
    const uint8_t *name, *value;
    int32_t name_length, value_length;
} Piece;

static inline int same_name(const uint8_t *name, int32_t length, const Piece *piece)
{
    return length == piece->name_length && equal(name, piece->name, (size_t)length);
}

/* The first byte from p on, and before end, that is 2 (or also 1); end where there is none.
 * Up to limit bytes may be read, but do not count. */
static inline const uint8_t *separator(const uint8_t *p, const uint8_t *end, const uint8_t *limit,
                                       int or_one)
{
#if defined(__SSE2__)
    const __m128i one = _mm_set1_epi8(1), two = _mm_set1_epi8(2);
    for (; p < end && limit - p >= 16; p += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        __m128i hits = _mm_cmpeq_epi8(block, two);
        if (or_one)
            hits = _mm_or_si128(hits, _mm_cmpeq_epi8(block, one));
        int mask = _mm_movemask_epi8(hits);
        if (mask) {
            p += __builtin_ctz((unsigned)mask);
            return p < end ? p : end;
        }
    }
#else
    (void)limit;
#endif
    while (p < end && *p != 2 && !(or_one && *p == 1))
        p++;
    return p < end ? p : end;
}

/* The next piece that is a property, or 0 at the end. */
static inline int next_property(const uint8_t **at, const uint8_t *end, const uint8_t *limit,
                                Piece *piece)
{
    while (*at < end) {
        const uint8_t *from = *at, *mark = separator(from, end, limit, 1);
        const uint8_t *stop = separator(mark, end, limit, 0);
        *at = stop + 1;
        if (mark == stop || mark == from || mark + 1 == stop)
            continue;
        piece->name = from;
        piece->name_length = (int32_t)(mark - from);
        piece->value = mark + 1;
        piece->value_length = (int32_t)(stop - mark - 1);
        return 1;
    }
    return 0;
}

/* Names whose values are looked for, and where these go: row i of n of each of k arrays. */
typedef struct {
    Piece names[MOST_NAMES];
    Py_ssize_t k, n;
    int64_t *at;
    int32_t *length;
} Wanted;

static int take_names(PyObject *tuple, Wanted *wanted)
{
    wanted->k = PyTuple_GET_SIZE(tuple);
    for (Py_ssize_t j = 0; j < wanted->k; j++) {
        char *name;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(tuple, j), &name, &length) < 0)
            return 0;
        wanted->names[j] = (Piece){.name = (const uint8_t *)name, .name_length = (int32_t)length};
    }
    return 1;
}

static inline void none_found(Wanted *wanted, Py_ssize_t i)
{
    for (Py_ssize_t j = 0; j < wanted->k; j++) {
        wanted->at[j * wanted->n + i] = 0;
        wanted->length[j * wanted->n + i] = -1;
    }
}

static inline void note_wanted(Wanted *wanted, Py_ssize_t i, const Piece *piece, const uint8_t *buffer)
{
    for (Py_ssize_t j = 0; j < wanted->k; j++)
        if (same_name(piece->name, piece->name_length, &wanted->names[j])) {
            wanted->at[j * wanted->n + i] = piece->value - buffer;
            wanted->length[j * wanted->n + i] = piece->value_length;
            return;
        }
}

/* A row's names while its duplicates are sought: compared one by one while they are few,
 * by a hash table past that, so that a row made of thousands of names takes milliseconds, not
 * seconds. */
#define FEW 24
#define SLOTS 32768 /* twice the pieces that 32,767 bytes can hold */

typedef struct {
    const uint8_t *buffer;
    int64_t *name_at;
    int32_t *name_length;
    Py_ssize_t first, count;
    int hashed;
    int32_t slots[SLOTS];
} Names;

static uint32_t name_hash(const uint8_t *p, int32_t n)
{
    uint32_t h = 2166136261u;
    while (n--)
        h = (h ^ *p++) * 16777619u;
    return (h ^ (h >> 15)) & (SLOTS - 1);
}

static int is_known(const Names *names, Py_ssize_t k, const Piece *piece)
{
    return same_name(names->buffer + names->name_at[k], names->name_length[k], piece);
}

static uint32_t slot_of(const Names *names, const Piece *piece)
{
    uint32_t slot = name_hash(piece->name, piece->name_length);
    while (names->slots[slot] >= 0 && !is_known(names, names->slots[slot] + names->first, piece))
        slot = (slot + 1) & (SLOTS - 1);
    return slot;
}

/* Where the piece's name stands already, or names->count where it is new. */
static Py_ssize_t place_of(Names *names, const Piece *piece)
{
    if (names->count - names->first < FEW) {
        Py_ssize_t k = names->first;
        while (k < names->count && !is_known(names, k, piece))
            k++;
        return k;
    }
    if (!names->hashed) {
        memset(names->slots, -1, sizeof names->slots);
        for (Py_ssize_t k = names->first; k < names->count; k++) {
            Piece known = {.name = names->buffer + names->name_at[k],
                           .name_length = names->name_length[k]};
            names->slots[slot_of(names, &known)] = (int32_t)(k - names->first);
        }
        names->hashed = 1;
    }
    uint32_t slot = slot_of(names, piece);
    if (names->slots[slot] < 0) {
        names->slots[slot] = (int32_t)(names->count - names->first);
        return names->count;
    }
    return names->slots[slot] + names->first;
}

static PyObject *properties(PyObject *self, PyObject *args)
{
    PyObject *o[10], *found_names;
    if (!PyArg_ParseTuple(args, "OOOOOOOOO!OO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6],
                          &o[7], &PyTuple_Type, &found_names, &o[8], &o[9]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(rows, int32_t, o[3], 1)
    TAKE(name_at, int64_t, o[4], 1)
    TAKE(name_length, int32_t, o[5], 1)
    TAKE(value_at, int64_t, o[6], 1)
    TAKE(value_length, int32_t, o[7], 1)
    TAKE(found_at, int64_t, o[8], 1)
    TAKE(found_length, int32_t, o[9], 1)
    Py_ssize_t n = starts_n, k = PyTuple_GET_SIZE(found_names);
    REQUIRE(k <= MOST_NAMES && found_at_n == n * k && found_length_n == n * k, SMALL)
    REQUIRE(lengths_n == n && rows_n == n + 1, SMALL)
    REQUIRE(name_length_n == name_at_n && value_at_n == name_at_n && value_length_n == name_at_n, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    for (Py_ssize_t i = 0; i < n; i++)
        REQUIRE(lengths[i] <= 65535, "properties are longer than their length field can say")
    Wanted wanted = {.n = n, .at = found_at, .length = found_length};
    if (!take_names(found_names, &wanted)) {
        release(&views);
        return NULL;
    }
    Names names = {.buffer = buffer, .name_at = name_at, .name_length = name_length, .count = 0};
    int full = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n && !full; i++) {
        rows[i] = (int32_t)names.count;
        none_found(&wanted, i);
        if (lengths[i] <= 0)
            continue;
        names.first = names.count;
        names.hashed = 0;
        const uint8_t *at = buffer + starts[i], *end = at + lengths[i];
        Piece piece;
        while (next_property(&at, end, buffer + buffer_n, &piece)) {
            note_wanted(&wanted, i, &piece, buffer);
            if (names.count == name_at_n) {
                full = 1;
                break;
            }
            /* Of a name given twice the last value counts, in the place of the first. */
            Py_ssize_t k = place_of(&names, &piece);
            name_at[k] = piece.name - buffer;
            name_length[k] = piece.name_length;
            value_at[k] = piece.value - buffer;
            value_length[k] = piece.value_length;
            if (k == names.count)
                names.count++;
        }
    }
    rows[n] = (int32_t)names.count;
    Py_END_ALLOW_THREADS
    release(&views);
    if (full) {
        PyErr_SetString(PyExc_ValueError, SMALL);
        return NULL;
    }
    return PyLong_FromSsize_t(names.count);
}

static PyObject *find_properties(PyObject *self, PyObject *args)
{
    PyObject *o[5], *names;
    if (!PyArg_ParseTuple(args, "OOOO!OO", &o[0], &o[1], &o[2], &PyTuple_Type, &names, &o[3], &o[4]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(found_at, int64_t, o[3], 1)
    TAKE(found_length, int32_t, o[4], 1)
    Py_ssize_t n = starts_n, k = PyTuple_GET_SIZE(names);
    REQUIRE(lengths_n == n && k <= MOST_NAMES, SMALL)
    REQUIRE(found_at_n == n * k && found_length_n == n * k, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    Wanted wanted = {.n = n, .at = found_at, .length = found_length};
    if (!take_names(names, &wanted)) {
        release(&views);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        none_found(&wanted, i);
        if (lengths[i] <= 0)
            continue;
        const uint8_t *at = buffer + starts[i], *end = at + lengths[i];
        Piece piece;
        while (next_property(&at, end, buffer + buffer_n, &piece))
            note_wanted(&wanted, i, &piece, buffer);
    }
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

static PyObject *split_spaces(PyObject *self, PyObject *args)
{
    PyObject *o[6];
    if (!PyArg_ParseTuple(args, "OOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(rows, int32_t, o[3], 1)
    TAKE(piece_at, int64_t, o[4], 1)
    TAKE(piece_length, int32_t, o[5], 1)
    Py_ssize_t n = starts_n;
    REQUIRE(lengths_n == n && rows_n == n + 1 && piece_length_n == piece_at_n, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    Py_ssize_t count = 0;
    int full = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n && !full; i++) {
        rows[i] = (int32_t)count;
        int64_t at = starts[i], end = lengths[i] > 0 ? at + lengths[i] : at;
        while (at < end) {
            if (buffer[at] == ' ') {
                at++;
                continue;
            }
            const uint8_t *space = memchr(buffer + at, ' ', (size_t)(end - at));
            int64_t stop = space ? space - buffer : end;
            if (count == piece_at_n) {
                full = 1;
                break;
            }
            piece_at[count] = at;
            piece_length[count++] = (int32_t)(stop - at);
            at = stop;
        }
    }
    rows[n] = (int32_t)count;
    Py_END_ALLOW_THREADS
    release(&views);
    if (full) {
        PyErr_SetString(PyExc_ValueError, SMALL);
        return NULL;
    }
    return PyLong_FromSsize_t(count);
}

#endif
