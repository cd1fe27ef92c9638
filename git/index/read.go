package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/varint"
)

// ErrSplit means that the index is a split index, which consists of two files (core.splitIndex). This package cannot
// read a split index.
var ErrSplit = errors.New("index is split (core.splitIndex)")

// errShort means that the file ends before the end of a part whose length the file states.
var errShort = errors.New("index is truncated")

// Read parses an index file of version 2 to 4. It drops the extensions that only speed up reading (EOIE, IEOT), which
// WriteTo creates again, and unknown optional extensions.
func Read(f object.Format, data []byte) (*Index, error) {
	x, err := read(f, data)
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	return x, nil
}

// read is Read with plain errors; Read adds to each error that the index could not be read.
func read(f object.Format, data []byte) (*Index, error) {
	body := len(data) - f.Size()
	if body < headerSize || string(data[:4]) != "DIRC" {
		return nil, errors.New("file is not a git index")
	}
	if err := verify(f, data[:body], data[body:]); err != nil {
		return nil, err
	}
	x := &Index{Format: f, Version: binary.BigEndian.Uint32(data[4:])}
	if x.Version < 2 || x.Version > 4 {
		return nil, fmt.Errorf("unknown index version %d", x.Version)
	}
	count := int(binary.BigEndian.Uint32(data[8:]))
	if least := fixedSize + f.Size() + 2 + 1; count > body/least {
		return nil, fmt.Errorf("index states %d entries: %w", count, errShort)
	}
	r := reader{x: x, text: string(data[:body]), at: headerSize}
	x.Entries = make([]Entry, count)
	for i := range x.Entries {
		var before *Entry
		if i > 0 {
			before = &x.Entries[i-1]
		}
		if err := r.entry(&x.Entries[i], before); err != nil {
			return nil, fmt.Errorf("index entry %d: %w", i, err)
		}
	}
	for r.at < body {
		if err := r.extension(); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// verify compares the checksum of body with sum. It accepts a sum that consists of zeros, which git writes if
// index.skipHash is set.
func verify(f object.Format, body, sum []byte) error {
	if bytes.Equal(sum, make([]byte, len(sum))) {
		return nil
	}
	h := checksum(f)
	h.Write(body)
	if !bytes.Equal(h.Sum(nil), sum) {
		return errors.New("checksum of the index is wrong")
	}
	return nil
}

// reader parses text. Its methods read at the offset r.at and advance it. They return errShort if text ends too early.
type reader struct {
	x    *Index
	text string // the paths of all entries are parts of this string, which saves memory
	at   int    // offset of the next byte
}

// take returns the next n bytes and moves the offset behind them.
func (r *reader) take(n int) (string, error) {
	if n < 0 || n > len(r.text)-r.at {
		return "", errShort
	}
	r.at += n
	return r.text[r.at-n : r.at], nil
}

// name returns the bytes up to the next NUL, and moves the offset behind that NUL.
func (r *reader) name() (string, error) {
	n := strings.IndexByte(r.text[r.at:], 0)
	if n < 0 {
		return "", errShort
	}
	r.at += n + 1
	return r.text[r.at-n-1 : r.at-1], nil
}

// id returns the next object id.
func (r *reader) id() (object.ID, error) {
	b, err := r.take(r.x.Format.Size())
	if err != nil {
		return object.ID{}, err
	}
	return object.FromBytes([]byte(b))
}

// varint returns the next number in variable-length encoding. The number states a count of bytes or of larger items, so
// varint returns errShort if the number exceeds the length of the file.
func (r *reader) varint() (int, error) {
	v, n := varint.Decode([]byte(r.text[r.at:min(len(r.text), r.at+9)]))
	if n == 0 || v > uint64(len(r.text)) {
		return 0, errShort
	}
	r.at += n
	return int(v), nil
}

// number decodes the big-endian number at the offset at of b.
func number(b string, at int) uint32 {
	return uint32(b[at])<<24 | uint32(b[at+1])<<16 | uint32(b[at+2])<<8 | uint32(b[at+3])
}

// readStat decodes stat data. In an entry the mode is in the middle of the stat data, so the data are passed in two
// parts: the string b begins with the times, the device and the inode number, and the string rest with the user, the
// group and the size.
func readStat(b, rest string) Stat {
	at := func(i int) int64 { return int64(number(b, i))*1e9 + int64(number(b, i+4)) }
	return Stat{at(0), at(8), number(b, 16), number(b, 20), number(rest, 0), number(rest, 4), number(rest, 8)}
}

// entry parses one entry into e. The parameter before is the previous entry, or nil for the first entry.
func (r *reader) entry(e, before *Entry) error {
	start := r.at
	b, err := r.take(fixedSize)
	if err != nil {
		return err
	}
	e.Stat = readStat(b, b[28:])
	e.Mode = object.Mode(number(b, 24))
	if !e.Mode.IsBlob() && e.Mode != object.ModeGitlink && e.Mode != object.ModeDir {
		return fmt.Errorf("entry has the invalid mode %o", uint32(e.Mode))
	}
	if e.ID, err = r.id(); err != nil {
		return err
	}
	flags, err := r.flags(e)
	if err != nil {
		return err
	}
	if r.x.Version == 4 {
		err = r.shortPath(e, before)
	} else {
		err = r.fullPath(e, start, int(flags&maxNameInFlags))
	}
	switch {
	case err != nil:
		return err
	case e.Path == "": // an entry without a path replaces an entry of the shared index; it occurs only in a split index
		return ErrSplit
	case len(e.Path) > maxPath:
		return fmt.Errorf("path of an entry has %d bytes, want 1 to 4096", len(e.Path))
	case min(len(e.Path), maxNameInFlags) != int(flags&maxNameInFlags):
		return fmt.Errorf("path of entry %.80q has %d bytes, but the entry states %d", e.Path, len(e.Path),
			flags&maxNameInFlags)
	case before != nil && compare(before, e) >= 0:
		return fmt.Errorf("entry %q is out of order", e.Path)
	}
	return nil
}

// flags parses the flags of an entry into e and returns the first 16 bits of them.
func (r *reader) flags(e *Entry) (uint16, error) {
	b, err := r.take(2)
	if err != nil {
		return 0, err
	}
	flags := binary.BigEndian.Uint16([]byte(b))
	e.AssumeValid = flags&flagAssumeValid != 0
	e.Stage = uint8(flags >> stageShift & 3)
	if flags&flagExtended == 0 {
		return flags, nil
	}
	if b, err = r.take(2); err != nil {
		return 0, err
	}
	more := binary.BigEndian.Uint16([]byte(b))
	if r.x.Version < 3 || more&^(flagSkipWorktree|flagIntentToAdd) != 0 {
		return 0, fmt.Errorf("unknown entry flags %#x", more)
	}
	e.SkipWorktree, e.IntentToAdd = more&flagSkipWorktree != 0, more&flagIntentToAdd != 0
	return flags, nil
}

// fullPath parses a path in version 2 or 3. The path is followed by 1 to 8 NULs, so that the size of the entry is a
// multiple of 8 bytes. The parameter start is the offset of the entry, and length is the path length in its flags.
func (r *reader) fullPath(e *Entry, start, length int) (err error) {
	if length < maxNameInFlags {
		e.Path, err = r.take(length)
	} else if e.Path, err = r.name(); err == nil {
		r.at-- // the NUL is part of the padding
	}
	if err != nil {
		return err
	}
	pad, err := r.take(8 - (r.at-start)%8)
	if err == nil && (strings.Trim(pad, "\x00") != "" || strings.IndexByte(e.Path, 0) >= 0) {
		err = errors.New("path of an entry is not padded with NULs")
	}
	return err
}

// shortPath parses a path in version 4: the number of bytes to remove from the end of the previous path, and the bytes
// to append to it.
func (r *reader) shortPath(e, before *Entry) error {
	gone, err := r.varint()
	if err != nil {
		return err
	}
	come, err := r.name()
	if err != nil {
		return err
	}
	if before == nil {
		e.Path = come
		return nil
	}
	if gone > len(before.Path) {
		return fmt.Errorf("entry removes %d bytes from the previous path %q, which is shorter", gone, before.Path)
	}
	// A path may contain most of the previous path. Without a limit, the paths in a file of n bytes could therefore have
	// n*n bytes in total.
	if len(before.Path)-gone+len(come) > maxPath {
		return errShort
	}
	e.Path = before.Path[:len(before.Path)-gone] + come
	return nil
}

// extension parses one extension. An unknown extension is an error, unless its name begins with a capital letter, which
// means that the extension is optional.
func (r *reader) extension() error {
	head, err := r.take(8)
	if err != nil {
		return err
	}
	body, err := r.take(int(number(head, 4)))
	if err != nil {
		return fmt.Errorf("index extension %.4q: %w", head, err)
	}
	in := &reader{x: r.x, text: body}
	switch head[:4] {
	case "TREE":
		if r.x.Tree, err = in.tree(0, len(r.x.Entries)); err == nil && in.at < len(body) {
			err = errors.New("cache tree has more than one root")
		}
	// The contents of REUC are kept unchanged for WriteTo.
	case "REUC":
		r.x.Undo = []byte(body)
	case "UNTR":
		r.x.Untracked, err = in.untracked()
	case "FSMN":
		err = in.monitor()
	// These extensions contain offsets in this file; WriteTo computes new ones.
	case "EOIE", "IEOT":
	case "sdir":
		r.x.Sparse = true
	case "link":
		err = ErrSplit
	default:
		if head[0] < 'A' || head[0] > 'Z' {
			err = errors.New("extension is unknown, but needed to read the index")
		}
	}
	if err != nil {
		return fmt.Errorf("index extension %.4q: %w", head, err)
	}
	return nil
}

// maxDepth is the maximum depth of directories. A path of maxPath bytes cannot have more directories.
const maxDepth = maxPath / 2

// tree parses the cache tree of a directory and of the directories below it. The parameter depth is the depth of the
// directory, and entries is the number of entries in the index.
func (r *reader) tree(depth, entries int) (*Tree, error) {
	name, err := r.name()
	if err != nil {
		return nil, err
	}
	end := strings.IndexByte(r.text[r.at:], '\n')
	if end < 0 || end > 32 {
		return nil, errShort
	}
	t := &Tree{Name: name}
	count, below, _ := strings.Cut(r.text[r.at:r.at+end], " ")
	if t.Count, err = strconv.Atoi(count); err != nil {
		return nil, err
	}
	subs, err := strconv.Atoi(below)
	if err != nil {
		return nil, err
	}
	r.at += end + 1
	// The depth is bounded, because a deep recursion would exhaust the stack.
	if t.Count > entries || subs < 0 || subs > len(r.text)-r.at || depth > maxDepth {
		return nil, errShort
	}
	if t.Count >= 0 {
		if t.ID, err = r.id(); err != nil {
			return nil, err
		}
	}
	for range subs {
		s, err := r.tree(depth+1, entries)
		if err != nil {
			return nil, err
		}
		t.Sub = append(t.Sub, s)
	}
	return t, nil
}

// monitor parses FSMN. Version 1 contains a time instead of a token; like git, monitor uses that time as the token.
func (r *reader) monitor() error {
	head, err := r.take(4)
	if err != nil {
		return err
	}
	switch v := number(head, 0); v {
	case 1:
		t, err := r.take(8)
		if err != nil {
			return err
		}
		r.x.Token = fmt.Sprint(uint64(number(t, 0))<<32 | uint64(number(t, 4)))
	case 2:
		if r.x.Token, err = r.name(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown index version %d", v)
	}
	if _, err := r.take(4); err != nil { // length of the bitmap, which is also stated in the bitmap
		return err
	}
	dirty, _, err := readBitmap([]byte(r.text[r.at:]), len(r.x.Entries))
	if err != nil {
		return err
	}
	for i := range r.x.Entries {
		e := &r.x.Entries[i]
		e.Valid = !dirty.has(i) && e.Mode != object.ModeGitlink
	}
	return nil
}
