// Package locks defines the locks of sessions: leases on paths that keep the mounts of other sessions from changing
// these paths. It parses and changes the file with the locks, and decides which paths are locked (View). Package
// locks/keeper reads the file from a session remote and writes it there.
//
// All locks of a session remote are in the file FileName of the ref Ref, one JSON document:
//
//	{"version":1,
//	 "locks":[{"id":"01M8...","session":"fix-login","actor":"alice","host":"desk","pattern":"src/login.c",
//	           "since":"...","expires":"...","ttl_seconds":3600,"reason":"refactoring"}],
//	 "forced":[{"lock":{...},"session":"try","actor":"bob","host":"box","time":"...","reason":"alice is on holiday"}]}
//
// A lock is in force until the time expires, by the clock of the host that holds it. Other hosts respect the lock for
// the duration Skew longer, because their clocks may differ. The mount of the holder renews its locks before they
// expire (File.Renew).
//
// The forced removal of another session's lock leaves a record, which is kept for the duration KeepForced.
package locks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/session"
)

const (
	// Ref is the name of the ref with the locks.
	Ref = session.Prefix + "locks"
	// FileName is the name of the file with the locks, in the tree of Ref's commit.
	FileName = "locks.json"

	// Skew is the time for which other hosts respect a lock after it has expired. Clocks of hosts may differ by as much
	// without harm.
	Skew = 15 * time.Second
	// DefaultTTL is the duration of a lock if the user sets no other. MinTTL and MaxTTL are the limits of the duration.
	DefaultTTL = time.Hour
	MinTTL     = 10 * time.Second
	MaxTTL     = 7 * 24 * time.Hour
	// KeepForced is the duration for which the record of a forced removal is kept.
	KeepForced = 7 * 24 * time.Hour

	version   = 1
	maxLocks  = 1000 // maximum number of locks of a session remote
	maxForced = 100  // maximum number of records of forced removals; the oldest ones are dropped
	maxName   = 200  // maximum size in bytes of the name of an actor or a host
	maxReason = 1000 // maximum size in bytes of a reason
)

var (
	// ErrFile means that the file with the locks is damaged, or was written by a newer version of artifactfs.
	ErrFile = errors.New("invalid file of locks")
	// ErrInvalid means that a lock has an invalid pattern, duration, reason or name.
	ErrInvalid = errors.New("invalid lock")
	// ErrFull means that the session remote has the maximum number of locks, so that no lock can be added.
	ErrFull = errors.New("session remote has the maximum of 1000 locks")
	// ErrNone means that no lock, or more than one, has the requested pattern or id.
	ErrNone = errors.New("no such lock")
)

// Lock is a lease of a session on paths: those that the pattern covers; see Covers.
type Lock struct {
	ID      string    `json:"id"`      // ULID
	Session string    `json:"session"` // session that holds the lock
	Actor   string    `json:"actor"`   // user or program that has locked
	Host    string    `json:"host"`    // host on which the command was run
	Pattern string    `json:"pattern"`
	Since   time.Time `json:"since"`
	Expires time.Time `json:"expires"`
	Seconds int64     `json:"ttl_seconds"` // duration for which each renewal extends the lock
	Reason  string    `json:"reason,omitempty"`
}

// Forced is the record of the removal of a lock by another session than its holder.
type Forced struct {
	Lock    Lock      `json:"lock"`              // lock that was removed
	Session string    `json:"session,omitempty"` // session whose command has removed the lock; "" if there was none
	Actor   string    `json:"actor"`
	Host    string    `json:"host"`
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason"`
}

// File is the decoded file with all locks of a session remote.
type File struct {
	Version int      `json:"version"`
	Locks   []Lock   `json:"locks"`            // oldest first
	Forced  []Forced `json:"forced,omitempty"` // oldest first
}

// Parse parses the contents of the file with the locks. An empty text is a file without locks. It returns errors that
// wrap ErrFile.
func Parse(text []byte) (File, error) {
	f := File{Version: version}
	if len(bytes.TrimSpace(text)) == 0 {
		return f, nil
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return File{Version: version}, fmt.Errorf("%w: %w", ErrFile, err)
	}
	if err := f.check(); err != nil {
		return File{Version: version}, fmt.Errorf("%w: %w", ErrFile, err)
	}
	return f, nil
}

// Encode returns the file as JSON.
func (f File) Encode() ([]byte, error) {
	if f.Locks == nil {
		f.Locks = []Lock{}
	}
	text, err := json.MarshalIndent(f, "", " ")
	return append(text, '\n'), err
}

func (f File) check() error {
	if f.Version != version {
		return fmt.Errorf("version %d is not known", f.Version)
	}
	if len(f.Locks) > maxLocks || len(f.Forced) > maxForced {
		return fmt.Errorf("more than %d locks, or more than %d forced removals", maxLocks, maxForced)
	}
	for i, l := range f.Locks {
		if err := l.check(); err != nil {
			return fmt.Errorf("lock %d: %w", i+1, err)
		}
		if slices.ContainsFunc(f.Locks[:i], func(other Lock) bool { return other.ID == l.ID }) {
			return fmt.Errorf("id %s occurs twice", l.ID)
		}
	}
	for i, r := range f.Forced {
		err := r.Lock.check()
		if err == nil {
			err = r.check()
		}
		if err != nil {
			return fmt.Errorf("forced removal %d: %w", i+1, err)
		}
	}
	return nil
}

func (l Lock) check() error {
	if _, err := session.ParseCheckpointID(l.ID); err != nil {
		return fmt.Errorf("invalid id %.40q", l.ID)
	}
	if session.ValidName(l.Session) != nil {
		return fmt.Errorf("invalid session %.100q", l.Session)
	}
	if err := CheckPattern(l.Pattern); err != nil {
		return err
	}
	switch ttl := time.Duration(min(max(l.Seconds, 0), int64(MaxTTL/time.Second)+1)) * time.Second; {
	case !validName(l.Actor) || !validName(l.Host):
		return fmt.Errorf("invalid name of a user %.100q or a host %.100q", l.Actor, l.Host)
	case !validReason(l.Reason):
		return fmt.Errorf("invalid reason %.100q", l.Reason)
	case l.Since.IsZero() || l.Expires.Before(l.Since):
		return errors.New("lock expires before it begins")
	case ttl < MinTTL || ttl > MaxTTL:
		return fmt.Errorf("duration of %d s, want %s to %s", l.Seconds, MinTTL, MaxTTL)
	}
	return nil
}

func (r Forced) check() error {
	switch {
	case r.Session != "" && session.ValidName(r.Session) != nil:
		return fmt.Errorf("invalid session %.100q", r.Session)
	case !validName(r.Actor) || !validName(r.Host) || r.Reason == "" || !validReason(r.Reason) || r.Time.IsZero():
		return errors.New("user, host, reason or time is invalid")
	}
	return nil
}

// validName reports whether text can be the name of a user or of a host.
func validName(text string) bool { return text != "" && len(text) <= maxName && printable(text) }

func validReason(text string) bool { return len(text) <= maxReason && printable(text) }

// printable reports whether text is valid UTF-8 without control characters such as newlines.
func printable(text string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return utf8.ValidString(text) && !strings.ContainsFunc(text, control)
}

// Holder returns the session and the user of the lock, for messages: "session fix-login (alice@desk)".
func (l Lock) Holder() string { return fmt.Sprintf("session %s (%s@%s)", l.Session, l.Actor, l.Host) }

// Mode states what mounts do if a program changes a path that another session has locked.
type Mode string

// The modes, as in the field locks of the policy of a repository.
const (
	Refuse Mode = "refuse" // the program gets the error EACCES; the default
	Warn   Mode = "warn"   // the change is made, logged, and shown by status
	Ignore Mode = "ignore" // the change is made, as without a lock
)
