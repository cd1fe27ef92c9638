// Package readable makes the readable branch of a session in thin mode: commits that stock git can read, one for each
// checkpoint and each commit of the session. Their trees contain only the files that the session has changed. Before a
// file is changed for the first time, a merge commit adds its old version, because git log -p shows no differences for
// merge commits.
package readable

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

// Limits of the readable branch.
const (
	maxSteps = 1000     // number of checkpoints that one push adds, the newest ones, and of commits for each
	maxPaths = 2000     // number of changed paths of a commit whose contents are added
	maxFile  = 1 << 20  // size of a file in bytes; the contents of larger files are not added
	maxOld   = 16 << 10 // size in bytes of the old contents of removed files that one push adds
	maxNamed = 100      // number of paths that a commit message names
)

// recordsDir is the directory of the transcript in the readable branch.
const recordsDir = "artifactfs-transcript/"

// branch is the readable branch while commits are added to it.
type branch struct {
	repo    *session.Repo
	state   state
	at      time.Time // time of commits that do not stand for a commit or checkpoint of the session
	objects []odb.Outgoing
	blobs   map[object.ID]bool // blobs that the session remote may lack
	trees   map[object.ID]bool // trees that the branch contains already
	whole   int64              // number of bytes of old contents of removed files that may still be added
}

// state describes a readable branch. It is stored in a file between two pushes.
type state struct {
	Tip        string            `json:"tip"`
	First      string            `json:"first"`
	Checkpoint string            `json:"checkpoint"` // newest checkpoint in the branch
	Head       string            `json:"head"`       // commit of HEAD at that checkpoint
	Tree       string            `json:"tree"`       // tree of the session that the tip shows
	Transcript string            `json:"transcript"`
	Files      map[string]string `json:"files"` // mode and id of the files by their paths
	Commits    map[string]bool   `json:"commits"`
}

// parse parses an object id in the state. It returns the zero id if the text is not an id.
func parse(text string) object.ID {
	id, _ := object.ParseID(text)
	return id
}

// Maker makes new commits of the readable branch of a session. Store may be nil.
type Maker struct {
	Repo  *session.Repo
	Store objects.Provider
	Log   *zap.Logger
}

// Make adds the checkpoints and commits of the session that the branch lacks, and returns the new commit of the branch;
// the result is zero if the branch lacks none. old is the commit of the branch on the session remote. If anew is set,
// Make makes the whole branch again. Packs that are not small are written below the directory dir.
func (m Maker) Make(ctx context.Context, dir string, old object.ID, anew bool) (thin.Readable, error) {
	repo := m.Repo
	file := filepath.Join(repo.Dir(), "artifactfs.readable")
	b := &branch{repo: repo, blobs: map[object.ID]bool{}, trees: map[object.ID]bool{}, whole: maxOld}
	if text, err := os.ReadFile(file); err != nil || json.Unmarshal(text, &b.state) != nil ||
		b.state.Tip != old.String() || anew {
		b.state = state{}
	}
	// If records were erased, the transcript has a new history, and the branch must not keep the old one.
	if was := parse(b.state.Transcript); !was.IsZero() {
		now, err := repo.Ref(session.TranscriptRef(repo.Session()))
		if err != nil {
			return thin.Readable{}, err
		}
		if !session.Within(repo, now, was) {
			b.state = state{}
		}
	}
	if b.state.Files == nil {
		b.state.Files = map[string]string{}
	}
	if b.state.Commits == nil {
		b.state.Commits = map[string]bool{}
	}
	if b.state.Tip != "" {
		if _, err := b.writeTrees(b.trees); err != nil {
			return thin.Readable{}, err
		}
	}
	if err := b.extend(ctx, m.Store); err != nil {
		return thin.Readable{}, err
	}
	tip := parse(b.state.Tip)
	if tip.IsZero() || tip == old {
		return thin.Readable{}, nil
	}
	text, err := json.Marshal(b.state)
	if err != nil {
		return thin.Readable{}, err
	}
	pack, err := b.pack(ctx, filepath.Join(dir, "readable"))
	return thin.Readable{Tip: tip, Pack: pack, Pushed: func() {
		// If the file is lost in a power failure, or is not written, the next push makes the branch again.
		if err := disk.WriteFileUnsynced(file, text, 0o600); err != nil {
			m.Log.Warn("record readable branch")
		}
	}}, err
}

// pack makes a pack of all new objects, and returns a function that writes the pack. A pack that is not small is stored
// below dir.
func (b *branch) pack(ctx context.Context, dir string) (func(context.Context, io.Writer) error, error) {
	made := map[object.ID]odb.Outgoing{}
	var ids []object.ID
	for _, o := range b.objects {
		made[o.ID] = o
		ids = append(ids, o.ID)
	}
	for id := range b.blobs {
		ids = append(ids, id)
	}
	small, err := packs.Small(b.repo.Format(), ids, func(id object.ID, limit int64) (object.Type, []byte, error) {
		o, own := made[id]
		if !own {
			return b.repo.Get(id, limit)
		}
		r, err := o.Open()
		if err != nil {
			return 0, nil, err
		}
		defer r.Close()
		content, err := io.ReadAll(r)
		return o.Type, content, err
	})
	if err != nil {
		return nil, err
	}
	if small != nil {
		return func(_ context.Context, w io.Writer) error {
			_, err := w.Write(small)
			return err
		}, nil
	}
	own, err := odb.Open(dir, b.repo.Format())
	if err != nil {
		return nil, err
	}
	defer own.Close()
	if _, err := own.Write(ctx, b.objects, odb.WriteOptions{Temporary: true}); err != nil {
		return nil, err
	}
	slices.SortFunc(ids, object.ID.Compare)
	file, err := os.Create(filepath.Join(dir, "branch.pack"))
	if err != nil {
		return nil, err
	}
	err = errors.Join(packs.Git(b.repo.Dir(), slices.Compact(ids), gitcmd.Alternates(dir))(ctx, file), file.Close())
	return func(_ context.Context, w io.Writer) error {
		made, err := os.Open(file.Name())
		if err != nil {
			return err
		}
		defer made.Close()
		_, err = io.Copy(w, made)
		return err
	}, err
}

// extend adds the checkpoints and commits that the branch lacks, and the records of the transcript.
func (b *branch) extend(ctx context.Context, store objects.Provider) error {
	var list []session.Checkpoint
	err := b.repo.EachCheckpoint(func(p session.Checkpoint) bool {
		if string(p.ID) > b.state.Checkpoint {
			list = append(list, p)
		}
		return string(p.ID) > b.state.Checkpoint && len(list) < maxSteps
	})
	if err != nil {
		return err
	}
	slices.Reverse(list)
	for _, p := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if b.at = p.Time; b.state.Tip == "" {
			base, err := b.repo.Commit(p.Base)
			if err == nil {
				b.state.Tree, b.state.Head = base.Tree.String(), p.Base.String()
			}
		}
		if err := b.commits(ctx, p.Head, store); err != nil {
			return err
		}
		if head, err := b.repo.Commit(p.Head); err == nil && b.state.Head != p.Head.String() && b.state.Tip != "" {
			if err := b.move(ctx, head.Tree, "HEAD moves to "+p.Head.String()); err != nil {
				return err
			}
		}
		_, text, err := b.repo.Get(p.Commit, object.MaxCommitSize)
		if err != nil {
			return err
		}
		subject := p.Message
		if subject == "" {
			subject = "checkpoint (" + string(p.Reason) + ")"
		}
		message := subject + "\n\n%sArtifactfs-Checkpoint: " + string(p.ID) + "\n"
		if err := b.step(ctx, p.Tree, who(text), message, store); err != nil {
			return err
		}
		b.state.Checkpoint, b.state.Head = string(p.ID), p.Head.String()
	}
	if id, err := session.ParseCheckpointID(b.state.Checkpoint); b.at.IsZero() && err == nil {
		b.at = id.Time()
	}
	return b.transcript(ctx)
}

// who returns the lines with the author and the committer from the contents of a commit.
func who(commit []byte) string {
	header, _, _ := bytes.Cut(commit, []byte("\n\n"))
	var lines strings.Builder
	for line := range strings.Lines(string(header) + "\n") {
		if strings.HasPrefix(line, "author ") || strings.HasPrefix(line, "committer ") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// commits adds the commits of the session that lead to the commit head by first parents and that the branch lacks.
func (b *branch) commits(ctx context.Context, head object.ID, store objects.Provider) error {
	var chain []object.ID
	for id := head; !id.IsZero() && b.repo.Owned(id) && !b.state.Commits[id.String()] && len(chain) < maxSteps; {
		info, err := b.repo.Commit(id)
		if err != nil {
			return err
		}
		chain = append(chain, id)
		if id = (object.ID{}); len(info.Parents) > 0 {
			id = info.Parents[0]
		}
	}
	slices.Reverse(chain)
	for _, id := range chain {
		_, text, err := b.repo.Get(id, object.MaxCommitSize)
		if err != nil {
			return err
		}
		info, err := object.ParseCommit(b.repo.Format(), text)
		if err != nil {
			return err
		}
		if len(info.Parents) > 0 {
			if parent, err := b.repo.Commit(info.Parents[0]); err == nil && b.state.Tip != "" {
				if err := b.move(ctx, parent.Tree, "The files as in commit "+info.Parents[0].String()); err != nil {
					return err
				}
			}
		}
		_, message, _ := bytes.Cut(text, []byte("\n\n"))
		to := strings.ReplaceAll(strings.TrimSpace(string(message)), "%", "%%") + "\n\n%sArtifactfs-Commit: " +
			id.String() + "\n"
		if err := b.step(ctx, info.Tree, who(text), to, store); err != nil {
			return err
		}
		b.state.Commits[id.String()], b.state.Head = true, id.String()
	}
	return nil
}
