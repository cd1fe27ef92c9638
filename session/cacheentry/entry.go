// Package cacheentry stores cache entries on a session remote: values that programs have derived from other data, such
// as test results and build outputs, under keys that name this data. All sessions of the session remote share the
// entries.
//
// Each entry has one ref, whose name contains the SHA-256 of the key:
//
//	refs/afs/cache/entries/HH/SHA256 -> commit with the file entry.json, the description of the entry
//	                                    its parent: a commit with the file value
//
// A fetch of depth 1 therefore gets descriptions without values from every git server, also from those without filters,
// and a fetch of depth 2 gets one entry completely. A new version replaces both commits, so git can remove the old
// ones. Equal values have the same parent commit.
//
// Refs change by compare-and-swap, so an entry is always complete, with its old or its new value. Readers verify the
// key and the SHA-256 of the value. An entry whose time has passed is treated as missing; only Store.GC removes it.
package cacheentry

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/session"
)

const (
	// MaxKey is the maximum length of a key in bytes.
	MaxKey = 1 << 10
	// MaxValue is the maximum size of a value in bytes.
	MaxValue = 64 << 20
	// None can be used instead of the expected hash of an entry. It means that the entry must not exist.
	None = "none"

	// maxInfo is the maximum size of a description in bytes. A key of MaxKey bytes can be six times as long in JSON.
	maxInfo = 16 << 10
	// version is the version of the format of descriptions.
	version = 1

	// InfoFile is the file with the description of an entry, in the commit of its ref. ValueFile is the value, in the
	// parent of that commit.
	InfoFile  = "entry.json"
	ValueFile = "value"
)

var (
	// ErrNone means that the session remote has no entry with the requested key, or that the entry has expired.
	ErrNone = errors.New("no entry with this key")
	// ErrKey means that a text cannot be a key.
	ErrKey = errors.New("invalid key")
	// ErrExpect means that a text is neither the hash of a value nor None.
	ErrExpect = errors.New("invalid expected hash: want 64 hexadecimal digits or " + None)
	// ErrTooLarge means that a value is larger than MaxValue.
	ErrTooLarge = errors.New("value is larger than 64 MiB")
	// ErrDamaged means that a ref does not contain an entry in the format of this package.
	ErrDamaged = errors.New("entry is damaged")
	// ErrNewer means that a later version of artifactfs has written an entry.
	ErrNewer = errors.New("entry was written by a later version of artifactfs")
	// ErrBusy means that other writers changed an entry at each of reffile.MaxTries attempts.
	ErrBusy = errors.New("entry is changed by others all the time")
)

// Concerns reports whether an error concerns an entry or a request, and not the session remote or this host.
func Concerns(err error) bool {
	return slices.ContainsFunc([]error{ErrNone, ErrKey, ErrExpect, ErrTooLarge, ErrDamaged, ErrNewer, ErrBusy},
		func(of error) bool { return errors.Is(err, of) })
}

// ConflictError means that an entry does not have the expected hash.
type ConflictError struct {
	Present Entry // present entry; the zero value if there is no entry
}

func (e *ConflictError) Error() string {
	if e.Present.Hash == "" {
		return "entry does not have the expected hash: it does not exist"
	}
	return "entry does not have the expected hash: it has the hash " + e.Present.Hash
}

// Entry describes a cache entry: everything except the value.
type Entry struct {
	Key     string
	Size    int64     // size of the value in bytes
	Hash    string    // SHA-256 of the value, as 64 hexadecimal digits
	Time    time.Time // time at which the value was stored
	Expires time.Time // time from which the entry counts as missing; zero: it does not expire
	// Actor is the user or program that stored the value, and Session its session. Both are claims of the writer that
	// are not verified. Session is "" if the writer used no session.
	Actor, Session string
}

// entryJSON is the file entry.json.
type entryJSON struct {
	Version int       `json:"version"`
	Key     string    `json:"key"`
	Size    int64     `json:"size"`
	Hash    string    `json:"sha256"`
	Time    time.Time `json:"time"`
	Expires time.Time `json:"expires,omitzero"`
	Actor   string    `json:"actor"`
	Session string    `json:"session,omitempty"`
}

// Ref returns the name of the ref of the entry with a key.
func Ref(key string) string {
	sum := sha256.Sum256([]byte(key))
	name := hex.EncodeToString(sum[:])
	return session.EntryPrefix + name[:2] + "/" + name
}

// ValidKey returns an error that wraps ErrKey unless key can be the key of an entry: 1 to MaxKey bytes of UTF-8 without
// control characters.
func ValidKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: key is empty", ErrKey)
	case len(key) > MaxKey:
		return fmt.Errorf("%w: key has %d bytes, limit is %d", ErrKey, len(key), MaxKey)
	case !utf8.ValidString(key) || strings.ContainsFunc(key, unicode.IsControl):
		return fmt.Errorf("%w: want text in UTF-8 without control characters", ErrKey)
	}
	return nil
}

// ValidExpect returns ErrExpect unless expect is "", None or the hash of a value.
func ValidExpect(expect string) error {
	if expect == "" || expect == None || validHash(expect) {
		return nil
	}
	return ErrExpect
}

// validHash reports whether a text is a SHA-256, as 64 lower-case hexadecimal digits.
func validHash(hash string) bool {
	return len(hash) == 2*sha256.Size && strings.Trim(hash, "0123456789abcdef") == ""
}

// Expired reports whether the entry counts as missing at the time now.
func (e Entry) Expired(now time.Time) bool { return !e.Expires.IsZero() && !now.Before(e.Expires) }

// Verify returns an error that wraps ErrDamaged unless value is the value that the entry describes.
func (e Entry) Verify(value []byte) error {
	sum := sha256.Sum256(value)
	if got := hex.EncodeToString(sum[:]); got != e.Hash {
		return fmt.Errorf("%w: value has the SHA-256 %s, want %s", ErrDamaged, got, e.Hash)
	}
	return nil
}

// encode returns the file entry.json.
func (e Entry) encode() ([]byte, error) {
	text, err := json.MarshalIndent(entryJSON{version, e.Key, e.Size, e.Hash, e.Time, e.Expires, e.Actor, e.Session}, "",
		"  ")
	return append(text, '\n'), err
}

// Parse parses the file entry.json of the entry with the ref name ref. It returns an error that wraps ErrDamaged or
// ErrNewer if the file is not the description of this entry.
func Parse(ref string, text []byte) (Entry, error) {
	var j entryJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return Entry{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	switch {
	case j.Version > version:
		return Entry{}, ErrNewer
	case j.Version != version, ValidKey(j.Key) != nil, Ref(j.Key) != ref, !validHash(j.Hash),
		j.Size < 0 || j.Size > MaxValue, j.Time.IsZero():
		return Entry{}, fmt.Errorf("%w: invalid description", ErrDamaged)
	}
	return Entry{j.Key, j.Size, j.Hash, j.Time, j.Expires, j.Actor, j.Session}, nil
}
