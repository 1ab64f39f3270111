/* Splits properties and finds them by name. Part of kernel.c. */
#ifndef RMQSTORE_PROPERTIES_H
#define RMQSTORE_PROPERTIES_H

#define MOST_NAMES 8 /* per call */

typedef struct {
    const uint8_t *name, *value;
    int32_t name_length, value_length;
} Piece;

static inline int same_name(const uint8_t *name, int32_t length, const Piece *piece)
{
    return length == piece->name_length && equal(name, piece->name, (size_t)length);
}

/* Return the first byte from p up to end that is 2 (or 1, if or_one), or end if there is none. May
 * read up to limit; bytes from end on do not count. */
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

/* Find the next valid property; return 0 at the end. */
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

/* Names to find, and where to write their values: row i of n of each of k arrays. */
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

/* The pairs of one row, as offsets and lengths within it. Duplicate names are found by comparing
 * while there are few, and by a hash table beyond that, so that a row of thousands of names takes
 * milliseconds, not seconds. The hash uses a random secret of this process, so that nobody can
 * craft names that collide. */
#define LONGEST 32767
#define MOST_PAIRS 8192 /* the shortest takes three bytes and a separator */
#define FEW 24
#define SLOTS (2 * MOST_PAIRS)

typedef struct {
    uint16_t name, name_length, value, value_length;
} Pair;

typedef struct {
    const uint8_t *start;
    int count, hashed;
    Pair pairs[MOST_PAIRS];
    int16_t slots[SLOTS];
} Row;

static inline int has_name(const Row *row, int k, const Piece *piece)
{
    return same_name(row->start + row->pairs[k].name, row->pairs[k].name_length, piece);
}

static uint64_t secret[2];

/* Called once, before anything is decoded. Return 0 with an exception set on failure. */
static int choose_secret(void)
{
    PyObject *os = PyImport_ImportModule("os");
    PyObject *bytes = os ? PyObject_CallMethod(os, "urandom", "n", (Py_ssize_t)sizeof secret) : NULL;
    int chosen = bytes && PyBytes_Check(bytes) && PyBytes_GET_SIZE(bytes) == sizeof secret;
    if (chosen)
        memcpy(secret, PyBytes_AS_STRING(bytes), sizeof secret);
    secret[1] |= 1;
    Py_XDECREF(bytes);
    Py_XDECREF(os);
    return chosen;
}

static inline uint64_t folded(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t hash_of(const uint8_t *p, int32_t length)
{
    uint64_t h = secret[0] ^ (uint64_t)length, part;
    for (; length >= 8; p += 8, length -= 8) {
        memcpy(&part, p, 8);
        h = folded(h ^ part, secret[1]);
    }
    part = 0;
    memcpy(&part, p, (size_t)length);
    return folded(h ^ part, secret[1]);
}

/* Return the slot that holds a name, or the free slot for it. */
static int slot_of(const Row *row, const Piece *piece)
{
    int slot = (int)(hash_of(piece->name, piece->name_length) & (SLOTS - 1));
    while (row->slots[slot] >= 0 && !has_name(row, row->slots[slot], piece))
        slot = (slot + 1) & (SLOTS - 1);
    return slot;
}

/* Return the pair that has the piece's name, or row->count if it is new. */
static int place_of(Row *row, const Piece *piece)
{
    if (row->count < FEW) {
        int k = 0;
        while (k < row->count && !has_name(row, k, piece))
            k++;
        return k;
    }
    if (!row->hashed) {
        memset(row->slots, -1, sizeof row->slots);
        for (int k = 0; k < row->count; k++) {
            Piece known = {.name = row->start + row->pairs[k].name,
                           .name_length = row->pairs[k].name_length};
            row->slots[slot_of(row, &known)] = (int16_t)k;
        }
        row->hashed = 1;
    }
    int slot = slot_of(row, piece);
    if (row->slots[slot] < 0) {
        row->slots[slot] = (int16_t)row->count;
        return row->count;
    }
    return row->slots[slot];
}

/* If a name occurs twice, the last value counts, at the first one's place. */
static inline void add_pair(Row *row, const Piece *piece)
{
    int k = place_of(row, piece);
    if (k == row->count)
        row->count++;
    row->pairs[k] = (Pair){.name = (uint16_t)(piece->name - row->start),
                           .name_length = (uint16_t)piece->name_length,
                           .value = (uint16_t)(piece->value - row->start),
                           .value_length = (uint16_t)piece->value_length};
}

static PyObject *properties(PyObject *self, PyObject *args)
{
    PyObject *o[10], *wanted_names;
    if (!PyArg_ParseTuple(args, "OOOOOOOOO!OO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6],
                          &o[7], &PyTuple_Type, &wanted_names, &o[8], &o[9]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(rows, int32_t, o[3], 1)
    TAKE(name_offsets, int32_t, o[4], 1)
    TAKE(names, uint8_t, o[5], 1)
    TAKE(value_offsets, int32_t, o[6], 1)
    TAKE(values, uint8_t, o[7], 1)
    TAKE(found_at, int64_t, o[8], 1)
    TAKE(found_length, int32_t, o[9], 1)
    Py_ssize_t n = starts_n, k = PyTuple_GET_SIZE(wanted_names);
    REQUIRE(k <= MOST_NAMES && found_at_n == n * k && found_length_n == n * k, SMALL)
    REQUIRE(lengths_n == n && rows_n == n + 1 && name_offsets_n == value_offsets_n, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    int64_t total = 0, room = 1;
    for (Py_ssize_t i = 0; i < n; i++) {
        REQUIRE(lengths[i] <= LONGEST, "properties are longer than they can be")
        total += lengths[i] > 0 ? lengths[i] : 0;
        room += lengths[i] > 0 ? (lengths[i] + 1) / 4 : 0;
    }
    REQUIRE(total <= names_n && total <= values_n && total <= INT32_MAX, SMALL)
    REQUIRE(room <= name_offsets_n, SMALL)
    Wanted wanted = {.n = n, .at = found_at, .length = found_length};
    if (!take_names(wanted_names, &wanted)) {
        release(&views);
        return NULL;
    }
    Row row;
    int32_t count = 0, name_end = 0, value_end = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        rows[i] = count;
        none_found(&wanted, i);
        if (lengths[i] <= 0)
            continue;
        row.start = buffer + starts[i];
        row.count = row.hashed = 0;
        const uint8_t *at = row.start, *end = at + lengths[i];
        Piece piece;
        while (next_property(&at, end, buffer + buffer_n, &piece)) {
            note_wanted(&wanted, i, &piece, buffer);
            add_pair(&row, &piece);
        }
        for (int p = 0; p < row.count; p++, count++) {
            const Pair *pair = &row.pairs[p];
            name_offsets[count] = name_end;
            copy(names + name_end, row.start + pair->name, pair->name_length);
            name_end += pair->name_length;
            value_offsets[count] = value_end;
            copy(values + value_end, row.start + pair->value, pair->value_length);
            value_end += pair->value_length;
        }
    }
    rows[n] = count;
    name_offsets[count] = name_end;
    value_offsets[count] = value_end;
    Py_END_ALLOW_THREADS
    release(&views);
    return PyLong_FromLong(count);
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
