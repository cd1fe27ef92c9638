package gittest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// Receiver is a bare repository that accepts pushes, through every server and by path, and records them.
type Receiver struct{ *Repo }

// Update is a change of one ref by a push.
type Update struct {
	Push     int // number of the push that made the update, counted from 1
	At       time.Time
	Ref      string
	Old, New object.ID // a zero ID means that the ref did not exist before, or was deleted
}

// These are the names of files in a Receiver: the list of pushes, and the text with which pushes are declined while the
// file exists.
const (
	receivedFile = "received"
	declinedFile = "declined"
)

// receiverHooks are the hooks of a Receiver by name. git runs each hook once for each push, with all its refs, in the
// repository's directory. Several pushes may run concurrently.
var receiverHooks = map[string]string{
	"pre-receive": `#!/bin/sh
cat >/dev/null
[ ! -e ` + declinedFile + ` ] || { cat ` + declinedFile + ` >&2; exit 1; }
`,
	"post-receive": `#!/bin/sh
exec 9>>` + receivedFile + ` && flock 9 && { echo "push $(date +%s%N)"; cat; } >&9
`,
}

// NewReceiver creates an empty Receiver at dir, with the options of New.
func NewReceiver(dir string, o RepoOptions) (*Receiver, error) {
	r, err := New(dir, o)
	if err != nil {
		return nil, err
	}
	return &Receiver{r}, r.receive()
}

// Receiving turns an existing repository into a Receiver.
func Receiving(r *Repo) (*Receiver, error) { return &Receiver{r}, r.receive() }

func (r *Repo) receive() error {
	config, err := os.OpenFile(filepath.Join(r.Path, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("make receiver: %w", err)
	}
	_, err = config.WriteString("[http]\n\treceivepack = true\n")
	if err := errors.Join(err, config.Close()); err != nil {
		return fmt.Errorf("make receiver: %w", err)
	}
	for name, script := range receiverHooks {
		path := filepath.Join(r.Path, "hooks", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(script), 0o755)); err != nil {
			return fmt.Errorf("make receiver: %w", err)
		}
	}
	return nil
}

// Updates returns all updates by pushes in the order in which they were made. An update is in the list as soon as its
// push was answered.
func (r *Receiver) Updates() ([]Update, error) {
	list, err := os.ReadFile(filepath.Join(r.Path, receivedFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list updates: %w", err)
	}
	var all []Update
	var at time.Time
	pushes := 0
	for line := range bytes.Lines(list) {
		fields := strings.Fields(string(line))
		var nano int64
		switch {
		case len(fields) == 2 && fields[0] == "push":
			if _, err := fmt.Sscan(fields[1], &nano); err != nil {
				return nil, fmt.Errorf("list updates: %w", err)
			}
			at = time.Unix(0, nano)
			pushes++
		case len(fields) == 3:
			u := Update{Push: pushes, At: at, Ref: fields[2]}
			for i, id := range []*object.ID{&u.Old, &u.New} {
				if strings.Trim(fields[i], "0") == "" {
					continue
				}
				if *id, err = object.ParseID(fields[i]); err != nil {
					return nil, fmt.Errorf("list updates: %w", err)
				}
			}
			all = append(all, u)
		default:
			return nil, fmt.Errorf("list updates: invalid line %q", line)
		}
	}
	return all, nil
}

// Decline makes the repository refuse all pushes with the given text, until Accept is called.
func (r *Receiver) Decline(text string) error {
	return os.WriteFile(filepath.Join(r.Path, declinedFile), []byte(text+"\n"), 0o644)
}

// Accept makes the repository accept pushes again.
func (r *Receiver) Accept() error { return os.Remove(filepath.Join(r.Path, declinedFile)) }

// Refs returns the values of all refs, by their full names.
func (r *Repo) Refs() (map[string]object.ID, error) {
	out, err := r.git("for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return nil, err
	}
	refs := map[string]object.ID{}
	for line := range strings.Lines(out) {
		id, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if refs[name], err = object.ParseID(id); err != nil {
			return nil, fmt.Errorf("list refs: %w", err)
		}
	}
	return refs, nil
}
