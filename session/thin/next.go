package thin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// nextContainer is a new container that was built but not pushed yet.
type nextContainer struct {
	id       object.ID              // commit of the container
	manifest manifest               // manifest of the container
	objects  []odb.Outgoing         // objects that the session remote lacks
	ids      map[string][]object.ID // ids of the objects in each new pack, by the pack's name
	dir      string                 // directory of the pack files
	alone    bool                   // whether the container's commit has no parent
	// anew states that the container was rewritten, so that it contains only objects that are reachable from its refs.
	anew bool
	// branch is the new commit of the readable branch; zero if the branch is not pushed.
	branch Readable
}

// next builds the container that is to replace the container with the commit p.tip. m is the manifest of the old
// container with the changed refs. If keepOld is set, the new container gets the old one as its parent in any case. The
// caller holds r.loading, and removes n.dir after the push.
func (r *Remote) next(ctx context.Context, p *Push, m manifest, load Load, keepOld bool) (_ *nextContainer, err error) {
	place, err := r.stateDir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(place, nextPrefix)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	n := &nextContainer{ids: map[string][]object.ID{}, dir: dir}
	m.Session, m.Format = r.session, p.Format
	if m.Base.URL == "" {
		m.Base.URL = load.Base.URL
	}
	for _, id := range load.Base.Commits {
		if !slices.Contains(m.Base.Commits, id) && len(m.Base.Commits) < maxCommits {
			m.Base.Commits = append(m.Base.Commits, id)
		}
	}
	ids := load.Contained
	if r.rewriting() && load.All != nil {
		all, ok, err := load.All(ctx, m.Refs)
		if err != nil {
			return nil, err
		}
		if ok {
			ids, m.Packs, m.Bases, n.anew = all, nil, nil, true
		}
	}
	packs, err := r.write(ctx, p, n, &m, load, ids)
	if err != nil {
		return nil, err
	}
	if err := n.addPacks(p.Format, &m, packs); err != nil {
		return nil, err
	}
	if err := n.addBases(p.Format, &m); err != nil {
		return nil, err
	}
	var before object.ID
	// A rewritten container gets no parent, so that the old containers become unreachable and gc on the session remote
	// can delete them.
	if n.anew && !keepOld {
		n.alone = true
	} else {
		before = p.tip
	}
	n.manifest = m
	return n, n.addCommit(p.Format, before)
}

// join selects small packs whose objects are pushed again in one pack together with the new objects. It returns the ids
// of the objects in these packs, and the packs that remain unchanged. If there are fewer than joinAt small packs, it
// selects none.
func (r *Remote) join(packs []packEntry) (ids []object.ID, rest []packEntry) {
	var small []packEntry
	for _, p := range packs {
		if p.Size < fullPack {
			small = append(small, p)
		}
	}
	if len(small) < joinAt {
		return nil, packs
	}
	// Select the newest packs, and then older ones as long as they are not much larger than all selected packs
	// together. So each time that a byte is pushed again, it becomes part of a much larger pack.
	joined, size := map[string]bool{}, int64(0)
	for i := len(small) - 1; i >= 0; i-- {
		p := small[i]
		if len(joined) >= minJoin && p.Size > 2*size {
			break
		}
		list, ok := r.readIDs(p.Name)
		// If another machine has pushed the pack, this host may not know the objects in the pack: leave the pack unchanged.
		if !ok {
			continue
		}
		joined[p.Name], size = true, size+p.Size
		ids = append(ids, list...)
	}
	rest = slices.DeleteFunc(slices.Clone(packs), func(p packEntry) bool { return joined[p.Name] })
	return ids, rest
}

// write writes three kinds of packs below n.dir at the same time, because most of the time is spent in git processes:
// those of the objects ids, of the objects of the mounted repository, and of the readable branch. It returns the first
// kind, as Load.Write does.
func (r *Remote) write(ctx context.Context, p *Push, n *nextContainer, m *manifest, load Load, ids []object.ID) (
	packs map[string][]object.ID, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []object.ID
	if len(ids) > 0 {
		var joined []object.ID
		joined, m.Packs = r.join(m.Packs)
		all = append(slices.Clone(ids), joined...)
	}
	var others sync.WaitGroup
	var baseErr, branchErr error
	if len(ids) > 0 && load.Bases != nil {
		if len(m.Bases) >= maxBases {
			m.Bases = nil
		}
		first := len(m.Bases) == 0
		others.Go(func() { baseErr = r.writeBases(ctx, n, load, first) })
	}
	others.Go(func() { n.branch, branchErr = r.nextReadable(ctx, p, load, n) })
	if len(ids) > 0 {
		if packs, err = load.Write(ctx, n.dir, all); err != nil {
			cancel()
		}
	}
	others.Wait()
	return packs, cmp.Or(err, baseErr, branchErr)
}

// writeBases writes packs of objects of the mounted repository. If this fails, it logs the error and adds none, because
// no session needs these packs.
func (r *Remote) writeBases(ctx context.Context, n *nextContainer, load Load, first bool) error {
	dir := join(n.dir, baseDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err := load.Bases(ctx, dir, first)
	if err == nil || ctx.Err() != nil {
		return err
	}
	r.log.Warn("add objects of the base to container", zap.String("session", r.session), zap.Error(err))
	return os.RemoveAll(dir)
}

// addPacks adds packs of owned objects to the container. They get the next numbers as names.
func (n *nextContainer) addPacks(f object.Format, m *manifest, packs map[string][]object.ID) error {
	for _, file := range slices.Sorted(maps.Keys(packs)) {
		entry, err := n.addPack(f, m, file)
		if err != nil {
			return err
		}
		m.Packs = append(m.Packs, entry)
		n.ids[entry.Name] = packs[file]
	}
	return nil
}

// addBases adds the packs of objects of the mounted repository that writeBases has written.
func (n *nextContainer) addBases(f object.Format, m *manifest) error {
	files, err := disk.Glob(join(n.dir, baseDir), "*.pack")
	for _, file := range files {
		entry, err := n.addPack(f, m, file)
		if err != nil {
			return err
		}
		m.Bases = append(m.Bases, entry)
	}
	return err
}

// addPack adds the blob with the contents of a pack file to the objects that are pushed, and returns the entry of the
// pack for the manifest.
func (n *nextContainer) addPack(f object.Format, m *manifest, file string) (packEntry, error) {
	blob, err := fileBlob(f, file)
	if err != nil {
		return packEntry{}, err
	}
	name := packName(m.Next)
	m.Next++
	n.objects = append(n.objects, blob)
	return packEntry{name, blob.ID, blob.Size}, nil
}

// fileBlob returns the blob with the contents of the file name. The file must exist until the blob was pushed.
func fileBlob(f object.Format, name string) (o odb.Outgoing, err error) {
	file, err := os.Open(name)
	if err != nil {
		return o, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return o, err
	}
	h := object.NewHasher(f, object.Blob, st.Size())
	if _, err := io.Copy(h, file); err != nil {
		return o, err
	}
	o = odb.Outgoing{Type: object.Blob, Size: st.Size(), Open: func() (io.ReadCloser, error) { return os.Open(name) }}
	o.ID, err = h.Sum()
	return o, err
}

// addCommit adds the manifest, the trees and the commit of the container to the objects that are pushed. The parameter
// before is the parent of the commit, or zero for none.
func (n *nextContainer) addCommit(f object.Format, before object.ID) error {
	text, err := n.manifest.encode()
	if err != nil {
		return err
	}
	add := func(t object.Type, content []byte) (object.ID, error) {
		o, err := session.Outgoing(f, t, content)
		n.objects = append(n.objects, o)
		return o.ID, err
	}
	refs, err := add(object.Blob, text)
	if err != nil {
		return err
	}
	root := []object.TreeEntry{{Mode: object.ModeFile, Name: manifestName, ID: refs}}
	for _, d := range []struct { // in the order of the entries of a git tree
		name  string
		packs []packEntry
	}{{baseDir, n.manifest.Bases}, {packDir, n.manifest.Packs}} {
		if len(d.packs) == 0 {
			continue
		}
		var packs []object.TreeEntry
		for _, p := range d.packs {
			packs = append(packs, object.TreeEntry{Mode: object.ModeFile, Name: p.Name, ID: p.Blob})
		}
		tree, err := add(object.Tree, session.EncodeTree(packs))
		if err != nil {
			return err
		}
		root = append(root, object.TreeEntry{Mode: object.ModeDir, Name: d.name, ID: tree})
	}
	tree, err := add(object.Tree, session.EncodeTree(root))
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "tree %s\n", tree)
	if !before.IsZero() {
		fmt.Fprintf(&b, "parent %s\n", before)
	}
	who := fmt.Sprintf("artifactfs <artifactfs@localhost> %d +0000", time.Now().Unix())
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\nContainer of session %s\n", who, who, n.manifest.Session)
	n.id, err = add(object.Commit, []byte(b.String()))
	return err
}

// recordPush records on this host that the session remote has accepted the container n.
func (r *Remote) recordPush(n *nextContainer) error {
	r.set(n.id, n.manifest)
	err := r.writeIDs(n.manifest, n.ids)
	if n.anew {
		err = errors.Join(err, r.rewritten())
	}
	return errors.Join(err, r.writeState(state{Tip: n.id, Manifest: n.manifest}))
}
