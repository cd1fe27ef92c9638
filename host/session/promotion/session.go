package promotion

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
)

// Session is a session that is promoted or summarised. It may be mounted, not mounted, or only on a session remote.
type Session struct {
	Name   string
	Record statedir.Record // record of the session
	Repo   *session.Repo
	// Request has the mounted remote and the session remote, with the credentials for both if the session is mounted.
	Request control.MountRequest
	GitDir  string // git directory of the mount; "" if the session is not mounted
	Far     bool   // whether Repo is a copy of the session from its session remote, which owns all of its objects
	// Known has commits of the mounted remote that Repo may own nevertheless. The history of the session ends at these
	// commits.
	Known []object.ID
	// Commits fetches commits with their trees, but without their history. It is nil if all commits are on this host.
	Commits func(ctx context.Context, ids []object.ID) error
	// Tree returns the entries of a tree. It fetches the tree if it is missing.
	Tree func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// Changes returns the paths at which two trees differ. Empty directories may be among them.
	Changes func(ctx context.Context, from, to object.ID) ([]control.PathChange, error)
	// Provide fetches contents from the mounted remote or the session remote.
	Provide func(ctx context.Context, ids []object.ID) error
	// Objects returns the git directories that have the objects of the session, apart from Repo.
	Objects func() []string
	// State returns the checkpoint state of a checkpoint.
	State func(ctx context.Context, p session.Checkpoint) (session.State, error)
	// Find returns the checkpoint with this name.
	Find func(ctx context.Context, name string) (session.Checkpoint, error)
}

// changes returns the files that differ between two trees.
func (o *Session) changes(ctx context.Context, from, to object.ID) ([]control.PathChange, error) {
	const dir = "040000"
	changes, err := o.Changes(ctx, from, to)
	return slices.DeleteFunc(changes, func(c control.PathChange) bool {
		return (c.OldMode == "" || c.OldMode == dir) && (c.NewMode == "" || c.NewMode == dir)
	}), err
}

// uncommitted returns the paths of the files that differ between a checkpoint and its HEAD commit.
func (o *Session) uncommitted(ctx context.Context, p session.Checkpoint) (paths []string, err error) {
	head, err := o.Repo.TreeOf(p.Head)
	if err != nil {
		return nil, err
	}
	changes, err := o.changes(ctx, head, p.Tree)
	for _, c := range changes {
		paths = append(paths, c.Path)
	}
	return paths, err
}

// provide fetches the contents of changed files that are missing on this host, in one request.
func (o *Session) provide(ctx context.Context, changes []control.PathChange) error {
	const submodule = "160000"
	var ids []object.ID
	for _, c := range changes {
		for _, side := range [][2]string{{c.OldMode, c.Old}, {c.NewMode, c.New}} {
			if id, err := object.ParseID(side[1]); err == nil && side[0] != submodule {
				ids = append(ids, id)
			}
		}
	}
	return o.fetch(ctx, ids)
}

// fetch fetches those of the contents ids that are missing on this host.
func (o *Session) fetch(ctx context.Context, ids []object.ID) error {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id object.ID) bool {
		_, _, err := o.Repo.Size(id)
		return err == nil
	})
	if len(ids) == 0 {
		return nil
	}
	return o.Provide(ctx, ids)
}

// provider returns the function Provide with the context ctx as a function without a context.
func (o *Session) provider(ctx context.Context) func(ids []object.ID) error {
	return func(ids []object.ID) error { return o.Provide(ctx, ids) }
}

// objects returns the object directories that have the objects of the session.
func (o *Session) objects() []string {
	dirs := []string{filepath.Join(o.Repo.Dir(), "objects")}
	for _, dir := range o.Objects() {
		dirs = append(dirs, filepath.Join(dir, "objects"))
	}
	return dirs
}

// git runs git in the session repository, and returns its standard output.
func (o *Session) git(ctx context.Context, args ...string) ([]byte, error) {
	return gitcmd.Repo{Dir: o.Repo.Dir(), Objects: o.objects()}.Output(ctx, "", args...)
}
