package transcript

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/git/object"
)

var (
	// ErrNoCommit means that no commit has the name in NoteRequest.Commit.
	ErrNoCommit = errors.New("no such commit")
	// ErrNotesRef means that NoteRequest.Ref cannot be the name of a ref below refs/notes/.
	ErrNotesRef = errors.New("invalid name of a notes ref")
)

const (
	notesPrefix = "refs/notes/"
	maxNote     = 16 << 20 // maximum size in bytes of an existing note that is merged
	noteTries   = 5        // number of attempts, because a git command of the user may write notes at the same time
)

// NoteRequest describes a git note that is to be written on a commit.
type NoteRequest struct {
	GitDir string // git directory that contains the commit
	Commit string // name of the commit in any form that git accepts; "" stands for HEAD
	Also   string // additional object directory in which git searches for Commit; "" if there is none
	Ref    string // name of the notes ref; "agent" stands for refs/notes/agent
	JSON   []byte // text of the note, which must be JSON
}

// Noted describes a note that was written.
type Noted struct {
	Commit string // full id of the commit
	Ref    string // full name of the notes ref
	Note   string // id of the blob that contains the note
	// Redacted is the number of secrets that were removed from the note.
	Redacted int64
}

// noting maps each git directory to a *sync.Mutex, which serializes the calls of Note for this directory: each call
// reads the old note, merges the new one with it, and writes the result. Each directory has a mutex of its own, because
// a container can make the git commands of one directory wait forever by creating a pipe there.
var noting sync.Map

// Note removes secrets from a git note, and writes the note. If both the old and the new note are JSON objects, it
// merges their members, and the values of the new note take precedence. Otherwise the new note replaces the old one.
func Note(ctx context.Context, n NoteRequest) (Noted, error) {
	clean, redacted, err := RedactJSON(n.JSON)
	if err != nil {
		return Noted{}, fmt.Errorf("write note: %w", err)
	}
	done := Noted{Ref: notesRef(n.Ref), Redacted: redacted}
	// git validates the name of the ref, because a name with ".." could lead outside of refs/notes/.
	if _, err := n.git(ctx, nil, "check-ref-format", done.Ref); err != nil || done.Ref == notesPrefix {
		return Noted{}, fmt.Errorf("write note: %w: %.80q", ErrNotesRef, n.Ref)
	}
	commit := n.Commit
	if commit == "" {
		commit = "HEAD"
	}
	id, err := n.git(ctx, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", commit+"^{commit}")
	if err != nil {
		return Noted{}, fmt.Errorf("write note: %w: %.80q", ErrNoCommit, commit)
	}
	done.Commit = string(id)
	lock, _ := noting.LoadOrStore(n.GitDir, new(sync.Mutex))
	lock.(*sync.Mutex).Lock()
	defer lock.(*sync.Mutex).Unlock()
	for range noteTries {
		if done.Note, err = n.write(ctx, done, clean); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return Noted{}, fmt.Errorf("write note on %s: %w", done.Commit, err)
	}
	return done, nil
}

// notesRef returns the full name of a notes ref. The parameter name may be short, as for `git notes --ref`.
func notesRef(name string) string {
	name = strings.TrimPrefix(name, notesPrefix)
	return notesPrefix + strings.TrimPrefix(name, "notes/")
}

// write writes a note and returns the id of its blob. If the commit has a note that is a JSON object, write merges text
// into it; it replaces any other note.
func (n NoteRequest) write(ctx context.Context, to Noted, text []byte) (note string, err error) {
	if old, err := n.git(ctx, nil, "notes", "--ref", to.Ref, "list", to.Commit); err == nil && isObject(text) {
		if before, err := n.git(ctx, nil, "cat-file", "blob", string(old)); err == nil && isObject(before) {
			if merged, err := mergeObjects(before, text); err == nil {
				text = merged
			}
		}
	}
	if _, err := n.git(ctx, text, "notes", "--ref", to.Ref, "add", "--force", "--file", "-", to.Commit); err != nil {
		return "", err
	}
	id, err := n.git(ctx, nil, "notes", "--ref", to.Ref, "list", to.Commit)
	if err != nil {
		return "", err
	}
	if _, err := object.ParseID(string(id)); err != nil {
		return "", err
	}
	return string(id), nil
}

// git runs a git command in the git directory with the standard input in, and returns its output without surrounding
// white space.
func (n NoteRequest) git(ctx context.Context, in []byte, args ...string) ([]byte, error) {
	// The configuration of the git directory names the mount as the working tree. The option --work-tree overrides this,
	// because an access to the mount would wait for the daemon, which waits for this command.
	repo, err := guard.Open(ctx, n.GitDir)
	if err != nil {
		return nil, err
	}
	repo.Options = []string{"--work-tree", repo.Dir, "-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsmonitor=false"}
	repo.Env = gitcmd.Identity() // the notes have the same author as checkpoints
	if n.Also != "" {
		repo.Objects = append([]string{n.Also}, repo.Objects...)
	}
	cmd := repo.Command(ctx, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &limited{&out, maxNote}
	if err := gitcmd.Run(cmd); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(out.Bytes()), nil
}

// limited is a writer that appends to a buffer, up to a maximum number of bytes.
type limited struct {
	to   *bytes.Buffer
	left int // number of bytes that may still be written
}

// Write appends p to the buffer. If the limit would be exceeded, it returns io.ErrShortBuffer, which ends the git
// command.
func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, io.ErrShortBuffer
	}
	l.left -= len(p)
	return l.to.Write(p)
}
