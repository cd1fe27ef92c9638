package resume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// Local identifies a checkpoint of a session on this host, from which a mount starts.
type Local struct {
	RepoDir    string // session repository that has the checkpoint
	Session    string // name of the session
	Checkpoint session.Checkpoint
	Ref        string // full name of the ref that the session started from; "" if the session started from a commit
	// ContentsFrom is the URL of the session remote from which missing contents of the session can be fetched, possibly
	// with a secret; "" if there is no such session remote.
	ContentsFrom string
}

// Link adds all objects of the session that from identifies to the session repository of the mount, by hard links. If
// the mount has a session, that becomes a fork of the other session.
func (t *Target) Link(ctx context.Context, from Local) (*Start, error) {
	format := from.Checkpoint.Tree.Format()
	var tips parentTips
	refs := session.NewRefDir(from.RepoDir, format)
	var err error
	if tips.transcript, err = refs.Ref(session.TranscriptRef(from.Session)); err != nil {
		return nil, err
	}
	if tips.facts, err = refs.Ref(session.FactsRef(from.Session)); err != nil {
		return nil, err
	}
	if err := LinkObjects(filepath.Join(from.RepoDir, "objects"), filepath.Join(t.RepoDir, "objects")); err != nil {
		return nil, fmt.Errorf("share the objects of session %s: %w", from.Session, err)
	}
	name := t.Session
	if name == "" {
		name = from.Session
	}
	repo, err := session.OpenRepo(t.RepoDir, t.RepoOptions(format, name))
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	shallow, err := readIDs(filepath.Join(from.RepoDir, "shallow"))
	if err == nil && len(shallow) > 0 {
		err = repo.SetShallow(shallow)
	}
	switch {
	case err != nil:
	case t.Session == "":
		err = keepBase(ctx, repo, from.Checkpoint)
	default:
		err = t.forkRefs(ctx, repo, from.Session, tips, from.Checkpoint)
	}
	if err != nil {
		return nil, err
	}
	return &Start{Checkpoint: from.Checkpoint, ContentsFrom: from.ContentsFrom, Ref: from.Ref, Base: from.Checkpoint.Base,
		Format: format}, nil
}

// LinkObjects creates hard links to all packs and loose objects of the object directory from in the object directory
// to. If another process repacks the directory from at the same time, packs disappear; LinkObjects then removes the
// directory to and starts again, at most 10 times.
func LinkObjects(from, to string) error {
	const tries = 10
	for try := 1; ; try++ {
		err := LinkOnce(from, to)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || try == tries {
			return err
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
}

// packFiles has the suffixes of the files of a pack, in the order in which they must appear for concurrent readers.
var packFiles = []string{".pack", ".promisor", ".rev", ".idx"}

// LinkOnce creates the links of LinkObjects in a single attempt. It returns fs.ErrNotExist if a pack disappears during
// the call. After an error, some links may exist.
func LinkOnce(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(to, "pack"), 0o755); err != nil {
		return err
	}
	packs, err := os.ReadDir(filepath.Join(from, "pack"))
	if err != nil {
		return err
	}
	// Readers open a pack when they see its .idx file, so the .idx file is linked last.
	for _, ending := range packFiles {
		for _, p := range packs {
			if strings.HasPrefix(p.Name(), "pack-") && strings.HasSuffix(p.Name(), ending) {
				if err := linkFile(filepath.Join(from, "pack", p.Name()), filepath.Join(to, "pack", p.Name())); err != nil {
					return err
				}
			}
		}
	}
	for _, e := range entries {
		if len(e.Name()) != 2 || !e.IsDir() {
			continue
		}
		loose, err := os.ReadDir(filepath.Join(from, e.Name()))
		if err == nil {
			err = os.MkdirAll(filepath.Join(to, e.Name()), 0o755)
		}
		if err != nil {
			return err
		}
		for _, l := range loose {
			// Git first writes a loose object to a temporary file with a name of this form, and renames the file when it is
			// complete.
			if strings.HasPrefix(l.Name(), "tmp_") {
				continue
			}
			if err := linkFile(filepath.Join(from, e.Name(), l.Name()), filepath.Join(to, e.Name(), l.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// linkFile creates the hard link to for the file from. It does nothing if the file to exists.
func linkFile(from, to string) error {
	err := os.Link(from, to)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// readIDs returns the object IDs in a file that has one ID on each line. It returns no IDs if the file does not exist.
func readIDs(path string) (ids []object.ID, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		ids, err = object.ParseLines(string(text))
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return ids, nil
}
