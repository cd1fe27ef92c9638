package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/trash"
)

// tries is the number of attempts to reopen a session while garbage of the repository is collected.
const tries = 3

// errBundle means that a file is not a bundle of this package.
var errBundle = errors.New("damaged bundle")

// isHeld reports whether an error is of the type *profile.OnHoldError.
func isHeld(err error) bool {
	var held *profile.OnHoldError
	return errors.As(err, &held)
}

// Reopen brings an archived session back: all its refs appear in one transaction, and the session can be mounted. It
// returns records.ErrNotFound if the session is not archived, and records.ErrExists if a session of the same name
// exists.
func (a *Archiver) Reopen(ctx context.Context, repoID, name string, by By) error {
	return a.restore(ctx, repoID, name, by,
		func(ctx context.Context, f *fetched) ([]records.Ref, error) { return f.reopened(ctx, by) })
}

// Trash moves an archived session to the trash of its repository, from which it can be restored for a time.
func (a *Archiver) Trash(ctx context.Context, repoID, name string, by By, now time.Time) error {
	return a.restore(ctx, repoID, name, by, func(_ context.Context, f *fetched) ([]records.Ref, error) {
		to := trash.Prefix(name, now)
		refs := slices.Clone(f.refs)
		for i, r := range refs {
			refs[i].Name = to + strings.TrimPrefix(r.Name, "refs/")
		}
		return refs, nil
	})
}

// refsOf returns the refs with which a session is brought back.
type refsOf func(ctx context.Context, f *fetched) ([]records.Ref, error)

// restore brings the objects of an archived session back, with the refs that the function refs returns.
func (a *Archiver) restore(ctx context.Context, repoID, name string, by By, refs refsOf) error {
	var err error
	for range tries {
		if err = a.try(ctx, repoID, name, by, refs); !errors.Is(err, records.ErrCollected) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("reopen archived session %s: %w", name, err)
	}
	return nil
}

func (a *Archiver) try(ctx context.Context, repoID, name string, by By, refs refsOf) error {
	f, err := a.fetch(ctx, repoID, name)
	if err != nil {
		return err
	}
	defer f.close()
	all, err := refs(ctx, f)
	if err != nil {
		return err
	}
	if err := f.check(ctx); err != nil {
		return err
	}
	r := records.Restoring{RepoID: repoID, Session: name, Bundle: f.row.Pack.ID, Version: f.copy.Repo.Version, Refs: all,
		Cause:  by.Cause,
		Events: by.events(f.copy.Repo)}
	if r.Packs = f.stored; f.pack != "" {
		p, err := a.o.Replicas.Store(ctx, f.copy.Packs(), f.pack)
		if err != nil {
			return err
		}
		r.Packs = append(r.Packs, p)
	}
	return a.o.Records.Archives.Take(ctx, r)
}

// fetched is an archived session whose objects are in a copy of its repository.
type fetched struct {
	*Archiver
	row     records.Archive
	on      *replica.Replica
	copy    *replica.Copy
	scratch string
	format  object.Format
	refs    []records.Ref  // refs of the session in the bundle
	pack    string         // hash of the pack of the bundle, which is in the copy; "" if the repository has it
	stored  []records.Pack // further packs, which are stored
}

func (f *fetched) close() {
	if f.copy != nil {
		f.copy.Remove()
	}
	if f.on != nil {
		f.on.Release()
	}
	if f.scratch != "" {
		_ = os.RemoveAll(f.scratch)
	}
}

// fetch fetches the bundle of an archived session.
func (a *Archiver) fetch(ctx context.Context, repoID, name string) (_ *fetched, err error) {
	row, err := a.o.Records.Archives.Get(ctx, repoID, name)
	if err != nil {
		return nil, err
	}
	f := &fetched{Archiver: a, row: row}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.on, err = a.o.Replicas.Acquire(ctx, repoID); err != nil {
		return nil, err
	}
	if f.copy, err = f.on.Copy(ctx); err != nil {
		return nil, err
	}
	if f.format, err = object.ParseFormat(f.copy.Repo.ObjectFormat); err != nil {
		return nil, err
	}
	if f.scratch, err = a.o.Replicas.Scratch(); err != nil {
		return nil, err
	}
	bundle := filepath.Join(f.scratch, row.Pack.ID+records.BundleExtension)
	if err := a.o.Objects.Get(ctx, row.Pack.Key(records.BundleExtension), bundle); err != nil {
		return nil, objects.Classify(err)
	}
	return f, f.unbundle(ctx, bundle)
}

// unbundle reads the refs of a bundle, and adds its objects to the copy.
func (f *fetched) unbundle(ctx context.Context, bundle string) error {
	from, err := os.Open(bundle)
	if err != nil {
		return err
	}
	defer from.Close()
	r := bufio.NewReaderSize(from, 64<<10)
	if f.refs, err = readHead(r); err != nil || f.row.Pack.Objects == 0 {
		return err
	}
	// git completes the pack by the objects on which differences are based.
	cmd := f.git().Command(ctx, "index-pack", "--stdin", "--fix-thin")
	cmd.Stdin = r
	if _, err := gitcmd.Output(cmd); err != nil {
		return err
	}
	added, err := f.copy.Added()
	// the repository can have this pack already, if the session was reopened before, and not collected since then
	if len(added) > 0 {
		f.pack = added[0]
	}
	return err
}

// readHead reads the part of a bundle before its pack, and returns the refs in it.
func readHead(r *bufio.Reader) (refs []records.Ref, err error) {
	for first := true; ; first = false {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errBundle, err)
		}
		line = strings.TrimSuffix(line, "\n")
		id, name, ok := strings.Cut(line, " ")
		switch {
		case first && (line == "# v2 git bundle" || line == "# v3 git bundle"):
		case line == "" && !first:
			return refs, nil
		case strings.HasPrefix(line, "-"), strings.HasPrefix(line, "@object-format="):
		case first || !ok || !object.ValidID(id):
			return nil, errBundle
		default:
			refs = append(refs, records.Ref{Name: name, ID: id})
		}
	}
}

// git returns how git runs in the copy.
func (f *fetched) git() gitcmd.Repo { return f.o.Replicas.Git().In(f.copy.Dir) }

// check returns an error unless the copy has all objects that the refs of the session reach.
func (f *fetched) check(ctx context.Context) error {
	var tips strings.Builder
	for _, r := range f.refs {
		tips.WriteString(r.ID + "\n")
	}
	_, err := f.git().Output(ctx, tips.String(), "rev-list", "--objects", "--stdin", "--not", "--all", "--quiet")
	return err
}

// reopened returns the refs of the session. Its metadata is new if the session was closed or archived: it records who
// has reopened it.
func (f *fetched) reopened(ctx context.Context, by By) ([]records.Ref, error) {
	return f.edit(ctx, func(m *session.Meta, now time.Time) error {
		if m.State != session.Closed && m.State != session.Archived {
			return nil
		}
		return m.Become(session.Transition{State: session.Open, Actor: by.Actor, Reason: by.Reason}, now)
	})
}

// edit returns the refs of the session after a change of its metadata, whose new version is added to the packs.
func (f *fetched) edit(ctx context.Context, change func(m *session.Meta, now time.Time) error) ([]records.Ref, error) {
	refs := slices.Clone(f.refs)
	i := slices.IndexFunc(refs, func(r records.Ref) bool { return r.Name == session.MetaRef(f.row.Session) })
	if i < 0 {
		return refs, nil
	}
	store, err := odb.Open(filepath.Join(f.copy.Dir, "objects"), f.format)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	id, changes, err := EditMeta(store, f.format, refs[i].ID, change)
	if err != nil || len(changes) == 0 {
		return refs, err
	}
	refs[i].ID = id
	p, err := f.Store(ctx, f.format, changes)
	f.stored = append(f.stored, p)
	return refs, err
}

// EditMeta changes the metadata of a session in a commit. It returns the commit with the new metadata and its objects;
// no objects if nothing has changed.
func EditMeta(from session.Objects, f object.Format, commit string,
	change func(m *session.Meta, now time.Time) error) (string, []odb.Outgoing, error) {
	id, err := object.ParseIDOf(f, commit)
	if err != nil {
		return "", nil, err
	}
	m, err := session.MetaAt(from, f, id)
	if err != nil {
		return "", nil, err
	}
	before, now := m.Clone(), time.Now().UTC()
	if err := change(&m, now); err != nil || m.Equal(before) {
		return commit, nil, err
	}
	next, changes, err := m.Encode(f, id, now)
	return next.String(), changes, err
}

// Store stores objects as a pack, which a transaction can add to a repository.
func (a *Archiver) Store(ctx context.Context, f object.Format, all []odb.Outgoing) (p records.Pack, err error) {
	scratch, err := a.o.Replicas.Scratch()
	if err != nil {
		return p, err
	}
	defer os.RemoveAll(scratch)
	file := filepath.Join(scratch, "new.pack")
	if err := writePack(ctx, file, f, all); err != nil {
		return p, err
	}
	hash, err := a.index(ctx, f, file)
	if err != nil {
		return p, err
	}
	return a.o.Replicas.Store(ctx, scratch, hash)
}

// writePack writes a pack with objects to a file.
func writePack(ctx context.Context, file string, f object.Format, all []odb.Outgoing) error {
	to, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(odb.WritePack(ctx, to, f, all), to.Close())
}

// index makes the index of a pack, gives both files the names that git computes, pack-HASH.*, and returns HASH.
func (a *Archiver) index(ctx context.Context, f object.Format, pack string) (hash string, err error) {
	idx := strings.TrimSuffix(pack, ".pack") + ".idx"
	out, err := gitcmd.Output(a.o.Replicas.Git().Command(ctx, "index-pack", "--object-format="+f.String(),
		"-o", idx, pack))
	if err != nil {
		return "", err
	}
	hash = strings.TrimSpace(strings.TrimPrefix(string(out), "pack\t"))
	base := filepath.Join(filepath.Dir(pack), "pack-"+hash)
	for _, x := range []string{".pack", ".idx"} {
		if old := strings.TrimSuffix(pack, ".pack") + x; old != base+x {
			err = errors.Join(err, os.Rename(old, base+x))
		}
	}
	return hash, err
}
