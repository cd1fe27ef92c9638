package gitread

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/session"
)

// mergesAtOnce is the number of merges that Conflicts runs at the same time.
const mergesAtOnce = 2

// TreeMerge is a merge of the trees Ours and Theirs, which were made from the tree Base. All are ids of trees; "" is
// the empty tree.
type TreeMerge struct{ Base, Ours, Theirs string }

// Conflicts merges trees and returns, for each merge, the paths that git cannot merge. git writes the merged trees to a
// temporary directory, which is removed.
func (r Repo) Conflicts(ctx context.Context, merges []TreeMerge) (conflicts [][]string, err error) {
	if len(merges) == 0 {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "artifactfs-merge-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	commits, err := commitsIn(ctx, dir, merges)
	if err != nil {
		return nil, fmt.Errorf("merge trees: %w", err)
	}
	conflicts = make([][]string, len(merges))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(mergesAtOnce)
	for i, c := range commits {
		all.Go(func() error {
			try := func(renames bool) error {
				merged, err := merge.Commits(func(args ...string) ([]byte, error) {
					// git compares at most as many files to find renames as in differences.
					cmd := r.Command(ctx, append([]string{"-c", "merge.renameLimit=" + read.RenameLimit}, args...)...)
					cmd.Env = append(cmd.Env, "GIT_OBJECT_DIRECTORY="+dir, gitcmd.Alternates(filepath.Join(r.Dir, "objects")))
					return gitcmd.Output(cmd)
				}, c[0].String(), c[1].String(), merge.Renames(renames))
				conflicts[i] = merged.Conflicted()
				// it lacks contents that are in the mounted repository
				if errors.Is(err, merge.ErrAttributes) {
					return nil
				}
				return err
			}
			err := try(true)
			// it lacks the contents of a removed file, which may have been renamed
			if gitcmd.Exited(err, 128) && ctx.Err() == nil {
				err = try(false)
			}
			if gitcmd.Exited(err, 128) && ctx.Err() == nil {
				return fmt.Errorf("merge trees: %w: %w", read.ErrNotFound, err)
			}
			return err
		})
	}
	return conflicts, all.Wait()
}

// commitsIn writes commits with the trees to be merged to an object directory, and returns two of them for each merge.
func commitsIn(ctx context.Context, dir string, merges []TreeMerge) (commits [][2]object.ID, err error) {
	var objects []odb.Outgoing
	var format object.Format
	for _, m := range merges {
		ours, err := object.ParseID(m.Ours)
		if err != nil {
			return nil, err
		}
		theirs, err := object.ParseID(m.Theirs)
		if err != nil {
			return nil, err
		}
		var base object.ID
		if m.Base != "" {
			if base, err = object.ParseID(m.Base); err != nil {
				return nil, err
			}
		}
		format = ours.Format()
		list, us, them, err := session.CommitsToMerge(format, base, ours, theirs)
		if err != nil {
			return nil, err
		}
		objects, commits = append(objects, list...), append(commits, [2]object.ID{us, them})
	}
	store, err := odb.Open(dir, format)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	_, err = store.Write(ctx, objects, odb.WriteOptions{})
	return commits, err
}
