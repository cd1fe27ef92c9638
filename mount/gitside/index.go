package gitside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/mount/staging"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/mount/turns"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/worktree"
)

// Index writes git's first index in a mount and completes it later. The mount sets the exported fields before git commands can run; they
// are constant after that. One goroutine calls the methods at a time, except ReadSmall, which is safe for concurrent use.
type Index struct {
	Mount    *catalog.Mounted
	Events   *Events
	Tree     *worktree.Tree
	View     *fetch.View // converted contents of the trees
	Reads    bool        // contents may be fetched that no process has read yet
	Before   int64       // contents that the store had fetched when the mount was started
	Handover *takeover.Handover
	Turns    *turns.Turns
	Log      *zap.Logger

	Snapshot func() *fetch.Snapshot           // returns the snapshot of the mounted commit
	Git      func() *gitdir.Dir               // returns the git directory; nil if git commands do not work yet
	Bar      func() (release func(), ok bool) // holds git commands back until release is called; see gitPass

	indexed int64 // contents that the store had fetched when this process wrote git's index; negative: it did not
}

// write writes git's first index, unless an index exists. The index lists the files of the base tree. The parameter was is
// the index of the checkpoint that the mount starts from, whose staged entries are added; it is nil if the mount starts from a
// commit.
func (ix *Index) write(ctx context.Context, dir *gitdir.Dir, o gitdir.IndexOptions, was *session.Index) error {
	if HasIndex(ix.Mount.GitDir) {
		return nil
	}
	if was != nil {
		var err error
		if o.Staged, err = ix.staged(ctx, was); err != nil {
			return err
		}
	}
	came := ix.Mount.Store.Stats().Blobs // before the walk: contents fetched during it may be missing in the index
	err := dir.WriteIndex(ctx, o, ix.walkBase)
	if err == nil {
		ix.indexed = came
	}
	return err
}

// walkBase calls emit with an index entry for each path of the base tree, in the order of git's index. The first index is
// written from these entries.
func (ix *Index) walkBase(ctx context.Context, emit func(index.Entry) error) error {
	device, err := mountpoint.DeviceOf(ix.Mount.Dir)
	if err != nil {
		return err
	}
	return ix.Tree.Base().Walk(ctx, func(e worktree.BaseEntry) error {
		a := e.Attr
		return emit(index.Entry{
			Path: e.Path, Mode: e.Mode, ID: e.ID, Valid: e.Mode == object.ModeSymlink || ix.View.Exact(e.Path),
			Stat: index.Stat{Ctime: a.Ctime, Mtime: a.Mtime, Dev: device, Ino: uint32(a.Node), UID: a.UID, GID: a.GID, Size: uint32(max(a.Size, 0))},
		})
	})
}

// HasIndex reports whether git's index exists in the git directory gitDir. Once it exists, git commands maintain it, and the mount does
// not write a new one.
func HasIndex(gitDir string) bool {
	_, err := os.Lstat(filepath.Join(gitDir, "index"))
	return err == nil
}

// options returns the data for the extensions of git's first index: the journal position and the ignore files. If an index
// exists, it returns the zero value. It may fetch ignore files, which takes no longer than ignoreTime.
func (ix *Index) options(ctx context.Context) gitdir.IndexOptions {
	if HasIndex(ix.Mount.GitDir) {
		return gitdir.IndexOptions{}
	}
	ctx, cancel := context.WithTimeout(ctx, ignoreTime)
	defer cancel()
	rules, files, err := ix.ignoreFiles(ctx)
	if err != nil { // without the ignore files git status is slower, but correct
		ix.Log.Debug("read ignore files", zap.String("dir", ix.Mount.Dir), zap.Error(err))
	}
	return gitdir.IndexOptions{
		Token:    ix.Tree.Monitor().StartToken(),
		Files:    files,
		Ignore:   func(e index.Entry) ([]byte, bool) { content, ok := rules[e.Path]; return content, ok },
		Converts: func(e index.Entry) bool { return ix.View.Converts(e.Path) },
	}
}

const (
	maxIgnoreFile = 1 << 20         // bytes; git reads larger ignore files itself
	ignoreTime    = 2 * time.Second // git commands wait meanwhile
)

// ignoreFiles returns the contents of the base tree's ignore files by path, and the number of files in the tree. The first index
// uses them to fill git's untracked cache, which identifies ignore files by hash; without them the first git status reads every
// directory. Missing ignore files are fetched in one request, unless prefetching is off.
func (ix *Index) ignoreFiles(ctx context.Context) (rules map[string][]byte, files int, err error) {
	blobs, attributes, files, err := ix.View.GitConfigFiles(ctx)
	if err != nil || len(blobs) == 0 {
		return nil, files, err
	}
	if ix.Reads {
		var ids []object.ID
		for _, b := range slices.Concat(blobs, attributes) { // attributes decide whether an ignore file is converted
			ids = append(ids, b.ID)
		}
		if err = ix.Mount.Store.Provide(ctx, nil, ids); ctx.Err() != nil {
			return nil, files, err
		}
	}
	rules = make(map[string][]byte, len(blobs))
	for _, b := range blobs {
		if !ix.View.IsFetched(b) {
			continue // git reads it when it needs it
		}
		content, readErr := ix.ReadSmall(ctx, b)
		if readErr != nil {
			err = readErr
		} else if content != nil {
			rules[b.Path] = content
		}
	}
	return rules, files, err
}

// ReadSmall returns the contents of a blob, such as an ignore file; nil if it is larger than maxIgnoreFile.
func (ix *Index) ReadSmall(ctx context.Context, b fetch.Blob) ([]byte, error) {
	c, err := ix.View.OpenAlone(ctx, b)
	if err != nil {
		return nil, err
	}
	defer c.Release()
	if c.Size() > maxIgnoreFile {
		return nil, nil
	}
	content := make([]byte, c.Size())
	if _, err := c.ReadAt(content, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return content, nil
}

// staged returns the differences between an index and the mounted tree. If the index has entries of git add -N, staged also
// stores the empty blob, because git expects to find it.
func (ix *Index) staged(ctx context.Context, x *session.Index) (*gitdir.Staged, error) {
	if slices.ContainsFunc(x.Special, func(e session.IndexEntry) bool { return e.IntentToAdd }) {
		empty, err := staging.EmptyBlob(ix.Mount.Store.Format())
		if err == nil {
			err = ix.Mount.Owned.Keep(ctx, []odb.Outgoing{empty})
		}
		if err != nil {
			return nil, fmt.Errorf("keep what was staged: %w", err)
		}
	}
	read := func(ctx context.Context, id object.ID) ([]object.TreeEntry, error) { return ix.View.Tree(ctx, id) }
	return staging.Against(ctx, read, ix.Snapshot().Tree, x, ix.Mount.Store.Format(), func(id object.ID) (int64, bool) {
		_, n, err := ix.Mount.Owned.Size(id)
		return n, err == nil
	})
}
