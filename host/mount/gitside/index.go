package gitside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/staging"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/mount/turns"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// Index writes git's first index in a mount, and adds data to it later. The exported fields are set before git commands
// can run, and do not change after that. The methods must be called by one goroutine at a time, except ReadSmall, which
// may be called from any goroutine.
type Index struct {
	Mount    *catalog.Mounted
	Events   *Events
	Tree     *worktree.Tree
	Contents *contents.Contents // files and directories as the mount reads them
	// whether contents may be prefetched; if false, only contents that a process reads are fetched
	Reads    bool
	Handover *takeover.Handover
	Turns    *turns.Turns
	Log      *zap.Logger

	Git func() *gitdir.Dir               // returns the git directory; nil if git commands do not work in the mount yet
	Bar func() (release func(), ok bool) // delays git commands until release is called (gitPass.bar)

	// indexed is the number of blobs that the store had received when this process wrote git's index, or negative if
	// this process has not written the index.
	indexed int64
	// filled is the store's count of received blobs when Fill last found nothing more to add to the index.
	filled atomic.Int64
}

// write writes git's first index, with the files of the base tree, unless an index exists. was is the index of the
// checkpoint from which the mount starts, whose staged changes are added; it is nil if the mount starts from a commit.
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
	// read before the walk, because the index may not contain the sizes of blobs that arrive during it
	came := ix.Mount.Store.Stats().Blobs
	err := dir.WriteIndex(ctx, o, ix.emitBase)
	if err == nil {
		ix.indexed = came
	}
	return err
}

// emitBase calls emit with an index entry for each path of the base tree, in the order of git's index. After each
// directory, it emits the entries of the tree that the directory does not show, so that the next commit does not remove
// them.
func (ix *Index) emitBase(ctx context.Context, emit func(index.Entry) error) error {
	device, err := mountpoint.DeviceOf(ix.Mount.Dir)
	if err != nil {
		return err
	}
	return ix.Tree.Base().Walk(ctx, func(e worktree.BaseEntry) error {
		a := e.Attr
		var odd oddDir
		if e.Mode == object.ModeDir {
			var err error
			if odd, err = ix.oddDirOf(ctx, e.ID, e.Path); err != nil {
				return err
			}
			if odd.rewritten {
				e.ID = object.ID{}
			}
		}
		err := emit(index.Entry{
			Path: e.Path, Mode: e.Mode, ID: e.ID, Valid: e.Mode == object.ModeSymlink || ix.Contents.View.Exact(e.Path),
			Stat: index.Stat{Ctime: a.Ctime, Mtime: a.Mtime, Dev: device, Ino: uint32(a.Node), UID: a.UID, GID: a.GID,
				Size: uint32(max(a.Size, 0))},
		})
		for _, e := range odd.hidden {
			if err == nil {
				err = emit(e)
			}
		}
		return err
	})
}

// isFilled reports whether the index contains the data of all contents that the store has received, so that Fill does
// not lock the index until more contents arrive.
func (ix *Index) isFilled() bool { return ix.filled.Load() == ix.Mount.Store.Stats().Blobs }

// HasIndex reports whether the git directory gitDir contains an index. An existing index is maintained by git commands,
// so the mount writes none.
func HasIndex(gitDir string) bool {
	_, err := os.Lstat(filepath.Join(gitDir, "index"))
	return err == nil
}

// options returns the data for the extensions of git's first index: the journal position and the ignore files. It
// returns the zero value if an index exists. It may fetch ignore files, for at most ignoreTime.
func (ix *Index) options(ctx context.Context) gitdir.IndexOptions {
	if HasIndex(ix.Mount.GitDir) {
		return gitdir.IndexOptions{}
	}
	ctx, cancel := context.WithTimeout(ctx, ignoreTime)
	defer cancel()
	rules, files, err := ix.ignoreFiles(ctx)
	if err != nil { // without the ignore files, git status is slower but correct
		ix.Log.Debug("read ignore files", zap.String("dir", ix.Mount.Dir), zap.Error(err))
	}
	return gitdir.IndexOptions{
		Token:    ix.Tree.Monitor().StartToken(),
		Files:    files,
		Ignore:   func(e index.Entry) ([]byte, bool) { content, ok := rules[e.Path]; return content, ok },
		Converts: func(e index.Entry) bool { return ix.Contents.View.Converts(e.Path) },
	}
}

const (
	// maximum size in bytes of an ignore file that the mount reads for git; git reads larger ones itself
	maxIgnoreFile = 1 << 20
	ignoreTime    = 2 * time.Second // maximum time for fetching ignore files, because git commands wait for it
)

// ignoreFiles returns the contents of the ignore files in the base tree, by path, and the number of files in the tree.
// The caller writes them to git's untracked cache, which identifies ignore files by hash; without the cache, the first
// git status would read every directory. Missing ignore files are fetched in one request, unless prefetching is off.
func (ix *Index) ignoreFiles(ctx context.Context) (rules map[string][]byte, files int, err error) {
	blobs, attributes, files, err := ix.Contents.View.GitConfigFiles(ctx)
	if err != nil || len(blobs) == 0 {
		return nil, files, err
	}
	if ix.Reads {
		var ids []object.ID
		// attributes determine whether an ignore file is converted, so they are fetched too
		for _, b := range slices.Concat(blobs, attributes) {
			ids = append(ids, b.ID)
		}
		if err = ix.Mount.Store.Provide(ctx, nil, ids); ctx.Err() != nil {
			return nil, files, err
		}
	}
	rules = make(map[string][]byte, len(blobs))
	for _, b := range blobs {
		if !ix.Contents.View.IsFetched(b) {
			continue // git reads this ignore file itself when git needs it
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

// ReadSmall returns the contents of a blob, such as an ignore file, or nil if they are larger than maxIgnoreFile.
func (ix *Index) ReadSmall(ctx context.Context, b fetch.Blob) ([]byte, error) {
	c, err := ix.Contents.View.OpenAlone(ctx, b)
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

// staged returns the differences of the index x from the mounted tree. If x has files that were added with git add -N,
// staged also stores the empty blob, because git expects it to exist.
func (ix *Index) staged(ctx context.Context, x *session.Index) (*gitdir.Staged, error) {
	if slices.ContainsFunc(x.Special, func(e session.IndexEntry) bool { return e.IntentToAdd }) {
		empty, err := staging.EmptyBlob(ix.Mount.Store.Format())
		if err == nil {
			err = ix.Mount.Owned.Keep(ctx, []odb.Outgoing{empty})
		}
		if err != nil {
			return nil, fmt.Errorf("store staged contents: %w", err)
		}
	}
	read := func(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
		return ix.Contents.View.Tree(ctx, id)
	}
	return staging.Against(ctx, read, ix.Contents.Snapshot().Tree, x, ix.Mount.Store.Format(),
		func(id object.ID) (int64, bool) {
			_, n, err := ix.Mount.Owned.Size(id)
			return n, err == nil
		})
}
