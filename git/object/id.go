// Package object defines git's objects: ids of both hash formats, types, modes, and strict parsers for trees and
// commits. It does no I/O. A parser converts bytes to values, or returns an error that names the invalid part.
//
// All input is sent by remotes, which are not trusted. A parser therefore rejects objects that could harm a checkout.
// The formats are those of git's Documentation/gitformat-*.txt.
package object

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"github.com/pjbgf/sha1cd"
)

// Format is the hash function from which a repository derives the ids of its objects.
type Format uint8

const (
	SHA1 Format = iota
	SHA256
)

// ParseFormat parses the name of a format, as in the capability `object-format=` and the setting
// `extensions.objectFormat`.
func ParseFormat(name string) (Format, error) {
	switch name {
	case "sha1":
		return SHA1, nil
	case "sha256":
		return SHA256, nil
	}
	return 0, fmt.Errorf("parse object format %q: unknown format", name)
}

// String returns the name that git uses: "sha1" or "sha256".
func (f Format) String() string {
	if f == SHA256 {
		return "sha256"
	}
	return "sha1"
}

// Size returns the length of an id in bytes: 20 or 32.
func (f Format) Size() int {
	if f == SHA256 {
		return sha256.Size
	}
	return sha1cd.Size
}

// New returns a new hash. For SHA-1 it is the implementation that detects collision attacks, as in git itself.
func (f Format) New() hash.Hash {
	if f == SHA256 {
		return sha256.New()
	}
	return sha1cd.New()
}

// ID identifies an object. The zero ID stands for no object. IDs can be compared with == and used as map keys.
type ID struct {
	sum [32]byte
	n   uint8
}

// ErrCollision means that the contents of an object show the traces of a SHA-1 collision attack. Such an object is
// never accepted.
var ErrCollision = errors.New("object contains a SHA-1 collision attack")

// FromBytes returns the ID with the given 20 or 32 bytes. Any other length is an error.
func FromBytes(b []byte) (ID, error) {
	var id ID
	if len(b) != SHA1.Size() && len(b) != SHA256.Size() {
		return id, fmt.Errorf("read object ID: got %d bytes, want 20 or 32", len(b))
	}
	id.n = uint8(copy(id.sum[:], b))
	return id, nil
}

// ParseID parses an id of 40 or 64 lower-case hexadecimal digits, the only form that git writes.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 2*SHA1.Size() && len(s) != 2*SHA256.Size() {
		return id, fmt.Errorf("parse object ID %.80q: want 40 or 64 hexadecimal digits", s)
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return id, fmt.Errorf("parse object ID %.80q: want lower-case hexadecimal digits", s)
		}
	}
	n, err := hex.Decode(id.sum[:], []byte(s))
	if err != nil {
		return ID{}, fmt.Errorf("parse object ID %.80q: %w", s, err)
	}
	id.n = uint8(n)
	return id, nil
}

// ValidID reports whether s is an id in the form that ParseID accepts.
func ValidID(s string) bool {
	_, err := ParseID(s)
	return err == nil
}

// ParseIDOf parses an id like ParseID, but also returns an error if the id is not as long as the ids of the format f.
func ParseIDOf(f Format, s string) (ID, error) {
	id, err := ParseID(s)
	if err == nil && id.Format() != f {
		return ID{}, fmt.Errorf("parse object ID %s: not in format %s", s, f)
	}
	return id, err
}

// MustID parses an id that is a constant of the program, like ParseID. It panics if the id is invalid.
func MustID(s string) ID {
	id, err := ParseID(s)
	if err != nil {
		panic(err)
	}
	return id
}

// String returns the id in hexadecimal, or "" for the zero ID.
func (id ID) String() string { return hex.EncodeToString(id.sum[:id.n]) }

// Bytes returns the bytes of the id, or nil for the zero ID.
func (id *ID) Bytes() []byte { return id.sum[:id.n] }

// IsZero reports whether id is the zero ID.
func (id ID) IsZero() bool { return id.n == 0 }

// Format returns the hash format of the id.
func (id ID) Format() Format {
	if int(id.n) == SHA256.Size() {
		return SHA256
	}
	return SHA1
}

// Compare orders ids by their bytes, as pack indexes do.
func (id ID) Compare(other ID) int {
	// The unused bytes of a SHA-1 id are zero, so they do not affect the order.
	for i := 0; i < len(id.sum); i++ {
		if d := int(id.sum[i]) - int(other.sum[i]); d != 0 {
			return d
		}
	}
	return int(id.n) - int(other.n)
}

// Type is the type of an object. Its value is the number that packs use for it.
type Type uint8

const (
	Commit Type = 1
	Tree   Type = 2
	Blob   Type = 3
	Tag    Type = 4
)

// String returns git's name of the type, which is part of the header that is hashed with the contents.
func (t Type) String() string {
	switch t {
	case Commit:
		return "commit"
	case Tree:
		return "tree"
	case Blob:
		return "blob"
	case Tag:
		return "tag"
	}
	return "type " + strconv.Itoa(int(t))
}

// Hasher computes the id of an object whose contents are written to it piece by piece.
type Hasher struct {
	hash   hash.Hash
	format Format
}

// NewHasher returns a Hasher for an object of type t with size bytes of contents.
func NewHasher(f Format, t Type, size int64) *Hasher {
	h := &Hasher{f.New(), f}
	h.Reset(t, size)
	return h
}

// Reset starts another object, of type t with size bytes of contents.
func (h *Hasher) Reset(t Type, size int64) {
	h.hash.Reset()
	// The hash covers "type size", a zero byte, and the contents.
	var b [40]byte
	head := append(b[:0], t.String()...)
	head = append(head, ' ')
	head = strconv.AppendInt(head, size, 10)
	h.hash.Write(append(head, 0))
}

// Write adds contents. It never returns an error.
func (h *Hasher) Write(p []byte) (int, error) { return h.hash.Write(p) }

// Sum returns the id of the object, or ErrCollision.
func (h *Hasher) Sum() (ID, error) {
	var id ID
	if c, ok := h.hash.(sha1cd.CollisionResistantHash); ok {
		var buf [32]byte
		sum, collision := c.CollisionResistantSum(buf[:0])
		if collision {
			return id, ErrCollision
		}
		return FromBytes(sum)
	}
	var buf [32]byte
	return FromBytes(h.hash.Sum(buf[:0]))
}

// emptyTrees holds the id of the empty tree for each format.
var emptyTrees = func() (ids [2]ID) {
	for _, f := range []Format{SHA1, SHA256} {
		id, err := Hash(f, Tree, nil)
		if err != nil {
			panic(err) // cannot happen: the empty object is not a collision
		}
		ids[f] = id
	}
	return ids
}()

// Lines returns a text with one id on each line, as in git's file `shallow` and in the input of many commands of git.
func Lines(ids []ID) string {
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(id.String() + "\n")
	}
	return text.String()
}

// ParseLines parses a text that Lines has returned.
func ParseLines(text string) (ids []ID, err error) {
	for word := range strings.FieldsSeq(text) {
		id, err := ParseID(word)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// EmptyTree returns the id of the tree without entries. git knows this tree even if no repository contains it.
func EmptyTree(f Format) ID { return emptyTrees[f] }

// Hash returns the id of the object with the given contents, or ErrCollision.
func Hash(f Format, t Type, content []byte) (ID, error) {
	h := NewHasher(f, t, int64(len(content)))
	h.Write(content)
	return h.Sum()
}
