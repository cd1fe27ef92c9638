package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/thin"
)

const (
	unpackedDir = "thin" // name of the directory in a replica
	// maxUnpacked is the maximum total size, in bytes, of the packs of a thin session that is unpacked.
	maxUnpacked = 1 << 30
	// unpackTime is the time after which Unpacked unpacks no further packs; the next call continues.
	unpackTime = 3 * time.Second
	// maxDescription is the maximum size, in bytes, of the description of a container.
	maxDescription = 16 << 20
	// keepPacks is the time for which packs are kept after no container has them any more, because git processes may
	// still read them.
	keepPacks = 10 * time.Minute
	oldSuffix = ".old" // suffix of the file that marks such a pack
)

// Unpacked is a git directory with the refs and objects of a replica, in which thin sessions look like other sessions,
// because their containers (package session/thin) are unpacked. Pushes and fetches do not use it, because the
// repository itself does not have these refs and objects.
type Unpacked struct {
	Dir  string
	Refs map[string]string // refs that only containers have; must not be changed
	// Thin has the thin sessions whose refs are missing in Refs, each with the reason.
	Thin map[string]string
}

// With returns the refs of the repository together with those that only containers have.
func (u Unpacked) With(refs map[string]string) map[string]string {
	if len(u.Refs) == 0 {
		return refs
	}
	all := maps.Clone(refs)
	for ref := range refs { // remove the readable branches of the session, which have other commits than the session
		if name, ok := strings.CutPrefix(ref, thin.Prefix); ok {
			delete(all, thin.ReadableRef(name))
		}
	}
	for ref, id := range u.Refs {
		if all[ref] == "" {
			all[ref] = id
		}
	}
	return all
}

// unpacked is the Unpacked of an entry. Its git directory is in the directory of the replica, and is removed with it.
type unpacked struct {
	turn chan struct{} // semaphore of capacity 1: a goroutine that uses the fields below puts an element into it
	at   records.Version
	made *Unpacked // the Unpacked of the version at; nil if it must be created again
	// failed has the packs that could not be unpacked, by the id of the blob
	failed map[string]attempts
}

func newUnpacked() *unpacked {
	return &unpacked{turn: make(chan struct{}, 1), failed: map[string]attempts{}}
}

// Unpacked returns the unpacked form of the replica, which exists until the replica is released. If there are no thin
// sessions, it is the replica itself. Git verifies all objects. Of the mounted repository, containers have only the
// objects that the pushing hosts have chosen; other objects are missing.
func (r *Replica) Unpacked(ctx context.Context) (Unpacked, error) {
	if r.set == nil {
		return Unpacked{Dir: r.Dir}, nil
	}
	u := r.entry.unpacked
	select {
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-ctx.Done():
		return Unpacked{}, fmt.Errorf("unpack thin sessions: %w", ctx.Err())
	}
	if u.made != nil && u.at == r.Repo.Version {
		// check that it exists, because the replica may have been removed and created again
		if _, err := os.Lstat(u.made.Dir); err == nil {
			return *u.made, nil
		}
	}
	u.made = nil
	made, complete, err := r.unpack(ctx)
	if err != nil {
		return Unpacked{}, fmt.Errorf("unpack thin sessions: %w", objects.Classify(err))
	}
	if complete {
		u.made, u.at = &made, r.Repo.Version
	}
	return made, nil
}

// unpacking is one call of unpack.
type unpacking struct {
	set    *Set
	format object.Format
	from   string // replica
	to     string // git directory that is being created
	packs  map[string]bool
	bases  []object.ID // base commits of the sessions

	end    time.Time           // time after which no further pack is unpacked
	failed map[string]attempts // that of unpacked
}

// unpack unpacks the containers of the replica that are not unpacked yet. complete is false if sessions remain for the
// next call.
func (r *Replica) unpack(ctx context.Context) (made Unpacked, complete bool, err error) {
	made = Unpacked{Dir: r.Dir}
	text, err := os.ReadFile(filepath.Join(r.Dir, "packed-refs"))
	if err != nil {
		return made, false, err
	}
	if !bytes.Contains(text, []byte(" "+thin.Prefix)) {
		return made, true, nil
	}
	refs, err := packedrefs.Decode(text)
	if err != nil {
		return made, false, err
	}
	w := &unpacking{set: r.set, from: r.Dir, to: filepath.Join(r.Dir, unpackedDir), packs: map[string]bool{},
		end: time.Now().Add(unpackTime), failed: r.entry.unpacked.failed}
	if w.format, err = object.ParseFormat(r.Repo.ObjectFormat); err != nil {
		return made, false, err
	}
	if err := w.prepare(); err != nil {
		return made, false, err
	}
	known := make(map[string]bool, len(refs))
	for _, ref := range refs {
		known[ref.Name] = true
	}
	made = Unpacked{Dir: w.to, Refs: map[string]string{}, Thin: map[string]string{}}
	complete = true
	all := slices.Clone(refs)
	for _, ref := range refs {
		name, ok := strings.CutPrefix(ref.Name, thin.Prefix)
		if !ok || records.SessionOf(ref.Name) != name {
			continue
		}
		d, err := w.session(ctx, name, ref.ID)
		if ctx.Err() != nil {
			return made, false, ctx.Err()
		}
		if err != nil {
			made.Thin[name] = reason(err)
			complete = complete && !errors.Is(err, errLater)
			continue
		}
		w.bases = append(w.bases, d.Base.Commits...)
		for in, id := range d.Refs {
			if out := shownRef(name, in); out != "" && !known[out] {
				made.Refs[out] = id.String()
				all = append(all, packedrefs.Ref{Name: out, ID: id})
			}
		}
	}
	slices.SortFunc(all, func(a, b packedrefs.Ref) int { return strings.Compare(a.Name, b.Name) })
	if err := disk.WriteFileUnsynced(filepath.Join(w.to, "packed-refs"), packedrefs.EncodeTags(all, false),
		0o600); err != nil {
		return made, false, err
	}
	if err := w.shallow(ctx); err != nil {
		return made, false, err
	}
	if complete {
		w.forget()
	}
	return made, complete, w.sweep()
}

// shownRef returns the name that a ref in the container of a session has in a repository that several sessions use. It
// returns "" if the ref is not shown.
func shownRef(name, ref string) string {
	if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
		return "refs/heads/afs/" + name + "/" + branch
	}
	if tag, ok := strings.CutPrefix(ref, "refs/tags/"); ok {
		return "refs/afs/tags/" + name + "/" + tag
	}
	if strings.HasPrefix(ref, "refs/afs/") && records.SessionOf(ref) == name {
		return ref
	}
	return ""
}

// prepare creates a git directory without own objects, which reads the objects of the replica as an alternate.
func (w *unpacking) prepare() error {
	for _, dir := range []string{"refs", "objects/info", "objects/pack", "done"} {
		if err := os.MkdirAll(filepath.Join(w.to, dir), 0o700); err != nil {
			return err
		}
	}
	if err := w.removeTemporary(); err != nil { // of a process that was killed
		return err
	}
	// the files are copied, because git takes a link named HEAD for a symbolic ref
	for _, name := range []string{"HEAD", "config"} {
		text, err := os.ReadFile(filepath.Join(w.from, name))
		if err == nil {
			err = disk.WriteFileUnsynced(filepath.Join(w.to, name), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	alternate := filepath.Join(w.to, "objects/info/alternates")
	if _, err := os.Lstat(alternate); err == nil {
		return nil
	}
	return disk.WriteFileUnsynced(alternate, []byte("../../objects\n"), 0o600)
}

// command returns a git command that runs in the git directory dir.
func (w *unpacking) command(ctx context.Context, dir string, args ...string) gitCommand {
	r := w.set.git.In(dir)
	r.Options, r.Env = []string{"--no-replace-objects"}, []string{gitcmd.NoLocks, gitcmd.NoFetch}
	return gitCommand{r.Command(ctx, args...)}
}

// session unpacks the container of a session, and returns its description.
func (w *unpacking) session(ctx context.Context, name string, tip object.ID) (d thin.Described, err error) {
	if time.Now().After(w.end) {
		return d, errLater
	}
	text, err := w.command(ctx, w.from, "cat-file", "blob", tip.String()+":"+thin.ManifestName).output(maxDescription)
	if err == nil {
		d, err = thin.Describe(name, w.format, text)
	}
	if err != nil {
		return d, err
	}
	d.Packs, d.Bases = distinct(d.Packs), distinct(d.Bases)
	packs := slices.Concat(d.Packs, d.Bases)
	if err := w.measure(ctx, packs, maxUnpacked); err != nil {
		return d, err
	}
	for _, p := range packs {
		w.packs[p.ID.String()] = true // all of them, because sweep removes the others even if the loop below ends early
	}
	for i, p := range packs {
		var args []string
		optional := i >= len(d.Packs)
		if optional {
			args = []string{"--fix-thin"}
		}
		// Without the objects of the base, the session can be shown; only differences from its base cannot.
		if err := w.pack(ctx, p, args...); err != nil && (!optional || ctx.Err() != nil || errors.Is(err, errLater)) {
			return d, fmt.Errorf("unpack container: %w", err)
		}
	}
	return d, nil
}

// distinct returns the packs without those that occur again. A description can name a pack many times.
func distinct(packs []thin.PackBlob) []thin.PackBlob {
	seen := make(map[object.ID]bool, len(packs))
	return slices.DeleteFunc(slices.Clone(packs), func(p thin.PackBlob) bool {
		again := seen[p.ID]
		seen[p.ID] = true
		return again
	})
}

// measure sets the sizes of the packs, and returns errTooLarge if all have more than limit bytes. It measures the
// blobs, because the sizes in a description are what its author says.
func (w *unpacking) measure(ctx context.Context, packs []thin.PackBlob, limit int64) error {
	var ids strings.Builder
	for _, p := range packs {
		ids.WriteString(p.ID.String() + "\n")
	}
	check := w.command(ctx, w.from, "cat-file", "--batch-check=%(objectsize)")
	check.Stdin = strings.NewReader(ids.String())
	text, err := check.output(int64(len(packs)+1) * 128)
	if err != nil {
		return err
	}
	lines := strings.SplitAfter(string(text), "\n")
	var size int64
	for i := range packs {
		packs[i].Size = 0
		if i >= len(lines) {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(lines[i]), 10, 64)
		if err != nil {
			continue // the blob is missing; to unpack it fails
		}
		if size += n; n < 0 || size > limit {
			return errTooLarge
		}
		packs[i].Size = n
	}
	return nil
}

// errTooLarge means that the packs of a container have more than maxUnpacked bytes.
var errTooLarge = errors.New("container is too large to be unpacked")

// reason returns the text for users about a container that cannot be unpacked. Errors of git are not shown, because
// they can contain paths of the server.
func reason(err error) string {
	switch {
	case errors.Is(err, errTooLarge):
		return "its container is too large to be unpacked"
	case errors.Is(err, errSlow):
		return "its container takes too long to be unpacked"
	case errors.Is(err, errLater):
		return "its container has not been unpacked yet"
	case errors.Is(err, thin.ErrNewer):
		return "its container was written by a newer version"
	}
	return "its container is not valid"
}

// removeTemporary removes the packs that git has not completed.
func (w *unpacking) removeTemporary() error {
	dir := filepath.Join(w.to, "objects/pack")
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "tmp_") {
			err = errors.Join(err, os.Remove(filepath.Join(dir, f.Name())))
		}
	}
	return err
}

// shallow writes the file shallow, which lists the commits whose parents are missing: those of the replica, and the
// base commits.
func (w *unpacking) shallow(ctx context.Context) error {
	lines := map[string]bool{}
	text, err := os.ReadFile(filepath.Join(w.from, "shallow"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.FieldsSeq(string(text)) {
		lines[line] = true
	}
	// Of the base commits, only those are listed that the replica does not have.
	check := w.command(ctx, w.from, "cat-file", "--batch-check=%(objectname) %(objecttype)")
	check.Stdin = strings.NewReader(object.Lines(w.bases))
	out, err := check.output(maxDescription)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if id, what, _ := strings.Cut(strings.TrimSpace(line), " "); what == "missing" {
			lines[id] = true
		}
	}
	var all []string
	for line := range lines {
		all = append(all, line+"\n")
	}
	slices.Sort(all)
	return disk.WriteFileUnsynced(filepath.Join(w.to, "shallow"), []byte(strings.Join(all, "")), 0o600)
}

// sweep removes packs that no container has had for the time keepPacks.
func (w *unpacking) sweep() error {
	marks, err := os.ReadDir(filepath.Join(w.to, "done"))
	if err != nil {
		return err
	}
	used := map[string]bool{} // hashes of packs that are still used
	var old []string
	for _, m := range marks {
		path := filepath.Join(w.to, "done", m.Name())
		if !w.packs[m.Name()] {
			info, err := m.Info()
			if err != nil {
				return err
			}
			switch {
			case !strings.HasSuffix(m.Name(), oldSuffix):
				if err := os.Rename(path, path+oldSuffix); err != nil {
					return err
				}
				path += oldSuffix
				if err := os.Chtimes(path, time.Time{}, time.Now()); err != nil {
					return err
				}
			case time.Since(info.ModTime()) > keepPacks:
				old = append(old, path)
				continue
			}
		}
		hash, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		used[string(hash)] = true
	}
	for _, path := range old {
		hash, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !used[string(hash)] {
			if err := removePack(packDir(w.to), string(hash)); err != nil {
				return err
			}
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// gitCommand is a git command whose output is limited.
type gitCommand struct{ *exec.Cmd }

// output returns the output of the command, at most limit bytes.
func (c gitCommand) output(limit int64) ([]byte, error) {
	var text []byte
	err := gitcmd.Stream(c.Cmd, func(out io.Reader) (err error) {
		if text, err = io.ReadAll(io.LimitReader(out, limit+1)); int64(len(text)) > limit {
			err = fmt.Errorf("output of git has more than %d bytes", limit)
		}
		return err
	})
	return text, err
}

// into runs the command with its output as the input of the command to, and returns the output of that command.
func (c gitCommand) into(to gitCommand) (string, error) {
	var text []byte
	err := gitcmd.Stream(c.Cmd, func(out io.Reader) (err error) {
		to.Stdin = out
		text, err = gitcmd.Output(to.Cmd)
		return err
	})
	return string(text), err
}
