package thin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/transport"
)

const (
	// PackSize is the size in bytes up to which a pack of a container grows.
	PackSize = 32 << 20
	fullPack = PackSize / 2 // packs of at least this size in bytes are not joined with others
	joinAt   = 32           // number of smaller packs at which some of them are joined
	joinLess = joinAt / 2   // minimum number of packs that are joined at once
	maxBases = 16           // number of packs of base objects at which they are written again as one
)

// Push is a push to a session remote that OpenPush has started. The method Send sends the updates.
type Push struct {
	transport.Receiver
	remote *Remote         // Remote that started the push
	push   *transport.Push // push to the session remote, which sends the data
	// thin is set if the push goes to a container. The field tip is the commit of the container that the push replaces; it is zero
	// if there is no container yet.
	thin bool
	tip  object.ID
	// readable is the value of the readable branch of the session remote.
	readable object.ID
}

// Load describes the objects that a push to a container sends.
type Load struct {
	Direct    []odb.Outgoing // objects that are reachable from the updated ordinary refs
	Contained []object.ID    // ids of objects that are reachable from the refs in the container and that the container lacks
	Base      Base           // URL and commits of the mounted repository that these objects refer to; added to the manifest
	// All returns the ids of all objects that are reachable from refs. It is called if the container is to be rewritten, so that
	// it contains no other objects. The result ok is false if this host does not know all of the objects.
	All func(ctx context.Context, refs map[string]object.ID) (ids []object.ID, ok bool, err error)
	// Write writes packs of the objects ids into the directory dir. No pack is much larger than PackSize. Write leaves out objects
	// that no longer exist on this host.
	Write func(ctx context.Context, dir string, ids []object.ID) error
	// Bases writes packs of those objects of the mounted repository with which the contained objects are compared, into the directory
	// dir. The parameter all is set if the container has none of them yet; otherwise those of earlier calls need not be written again.
	// An object that is not on this host is left out. Bases may be nil.
	Bases func(ctx context.Context, dir string, all bool) error
	// Pushed is called when the session remote has accepted the container. Pushed may be nil.
	Pushed func()
	// Readable returns the next value of the readable branch, whose present value is old. Its objects may be written to the directory
	// dir. The parameter anew is set if the branch must not reach older commits of it. Readable may be nil.
	Readable func(ctx context.Context, dir string, old object.ID, anew bool) (Readable, error)
}

// OpenPush starts a push and requests the session remote's refs that begin with one of the prefixes, or all refs if there are no
// prefixes.
func (r *Remote) OpenPush(ctx context.Context, prefixes []string) (*Push, error) {
	asked := prefixes
	if r.session != "" {
		asked = r.asked(prefixes)
	}
	push, err := r.Remote.OpenPush(ctx, asked)
	if err != nil {
		return nil, err
	}
	p := &Push{Receiver: push.Receiver, remote: r, push: push}
	for _, ref := range push.Refs {
		if r.session != "" && ref.Name == ReadableRef(r.session) {
			p.readable = ref.ID
		}
	}
	if r.session == "" {
		return p, nil
	}
	if p.Refs, p.thin, p.tip, err = r.view(ctx, p.Format, push.Refs, prefixes); err != nil {
		push.Close()
		return nil, err
	}
	// A push replaces the container as a whole, by one compare-and-swap of its ref, so it can change or delete any number of the
	// refs in the container atomically.
	if p.thin {
		p.Atomic, p.Delete = true, true
	}
	return p, nil
}

// OpenPushOf starts a push of ordinary refs. The parameter refs holds the session remote's refs, as in
// transport.Remote.OpenPushOf.
func (r *Remote) OpenPushOf(ctx context.Context, refs []transport.Ref) (*Push, error) {
	push, err := r.Remote.OpenPushOf(ctx, refs)
	if err != nil {
		return nil, err
	}
	return &Push{Receiver: push.Receiver, remote: r, push: push}, nil
}

// Thin reports whether the push goes to a container, the commit that stores the session's packs.
func (p *Push) Thin() bool { return p.thin }

// UseContainer makes the session use a container. This push is the first push that goes to the container.
func (p *Push) UseContainer() error {
	owner, err := p.remote.owner(p.Format)
	if err != nil {
		return err
	}
	p.remote.UseContainer()
	p.thin, p.Atomic, p.Delete = true, true, true
	p.Refs = slices.DeleteFunc(slices.Clone(p.Refs), func(ref transport.Ref) bool { return !direct(ref.Name, p.remote.session) })
	p.Refs = append(p.Refs, owner)
	return nil
}

// Direct reports whether ref is an ordinary ref even if the session uses a container.
func (p *Push) Direct(ref string) bool { return direct(ref, p.remote.session) }

// Close ends the push. If Send was not called, the session remote is unchanged.
func (p *Push) Close() { p.push.Close() }

// Send updates refs by compare-and-swap, like transport.Push.Send, and returns the result of each update. A push to a container
// sends the objects in the parameter load instead of req.Pack.
func (p *Push) Send(ctx context.Context, req transport.PushRequest, load Load) ([]error, error) {
	if !p.thin {
		return p.push.Send(ctx, req)
	}
	r := p.remote
	r.loading.Lock()
	defer r.loading.Unlock()
	r.mu.Lock()
	now, at, keepOld := r.manifest.clone(), r.tip, r.keepOld
	r.mu.Unlock()
	// moved is the result of each update if another process has replaced the container. The caller then lists the refs again and
	// retries.
	moved := &transport.Rejected{Ref: Ref(r.session), Kind: transport.RejectMoved, Text: "container was changed by another process"}
	if at != p.tip {
		return rejectAll(req.Updates, moved), nil
	}
	var ordinary []transport.RefUpdate
	contained := false
	for _, u := range req.Updates {
		if direct(u.Name, r.session) {
			ordinary = append(ordinary, u)
			continue
		}
		contained = true
		// Compare the old values of refs in the container on this host, because the server does not know these refs. The
		// comparison is safe, because the push updates the container's ref by compare-and-swap.
		if now.Refs[u.Name] != u.Old {
			return rejectAll(req.Updates, moved), nil
		}
		if u.New.IsZero() {
			delete(now.Refs, u.Name)
		} else {
			if now.Refs == nil {
				now.Refs = map[string]object.ID{}
			}
			now.Refs[u.Name] = u.New
		}
	}
	if !contained {
		return p.push.Send(ctx, transport.PushRequest{Updates: ordinary, Pack: packOf(p.Format, load.Direct),
			Atomic: req.Atomic && p.push.Atomic})
	}
	next, err := r.next(ctx, p, now, load, keepOld)
	if err != nil {
		return nil, fmt.Errorf("create container of session %s: %w", r.session, err)
	}
	defer os.RemoveAll(next.dir)
	// Write the state before the push. If the server's answer is lost, load recognizes the new container as state.Next.
	if err := r.writeState(state{Tip: at, Manifest: r.manifest, Next: next.id, NextManifest: next.manifest}); err != nil {
		return nil, err
	}
	send := transport.PushRequest{
		Updates: append(ordinary, transport.RefUpdate{Name: Ref(r.session), Old: at, New: next.id}),
		Pack:    packOf(p.Format, append(load.Direct, next.objects...)),
	}
	branch, err := r.addReadable(ctx, p, &send, load, next)
	if err != nil {
		return nil, err
	}
	send.Atomic = len(send.Updates) > 1 && p.push.Atomic
	results, err := p.push.Send(ctx, send)
	if err != nil {
		return nil, err
	}
	last := results[len(ordinary)]
	if !branch.Tip.IsZero() {
		switch result := results[len(ordinary)+1]; {
		case result == nil:
			branch.Pushed()
		default:
			// The branch only shows what the container has. It must not keep the container from being pushed, so it is left out from now on.
			r.log.Warn("push readable branch", zap.String("session", r.session), zap.Error(result))
			r.mu.Lock()
			r.unreadable = true
			r.mu.Unlock()
			if last != nil {
				return rejectAll(req.Updates, moved), nil // the caller retries
			}
		}
	}
	// If the state cannot be written, the push still succeeds, because the state can be fetched from the session remote.
	if last == nil {
		if err := r.arrived(next); err != nil {
			r.log.Warn("record contents of container", zap.String("session", r.session), zap.Error(err))
		}
		if load.Pushed != nil {
			load.Pushed()
		}
	}
	var refused *transport.Rejected
	if errors.As(last, &refused) && refused.Kind == transport.RejectFastForward && next.alone {
		r.mu.Lock()
		r.keepOld = true
		r.mu.Unlock()
		last = moved // the caller retries, and then the new container gets a parent
	}
	all := make([]error, 0, len(req.Updates))
	for _, u := range req.Updates {
		if i := slices.IndexFunc(ordinary, func(o transport.RefUpdate) bool { return o.Name == u.Name }); i >= 0 {
			all = append(all, results[i])
		} else {
			all = append(all, last)
		}
	}
	return all, nil
}

// addReadable adds the next value of the readable branch to a push. It adds nothing if the value cannot be made, or if the session remote has
// refused one.
func (r *Remote) addReadable(ctx context.Context, p *Push, send *transport.PushRequest, load Load, n *nextContainer) (
	branch Readable, err error) {
	r.mu.Lock()
	refused := r.unreadable
	r.mu.Unlock()
	if load.Readable == nil || refused {
		return branch, nil
	}
	branch, err = load.Readable(ctx, n.dir, p.readable, n.anew)
	if err != nil {
		if ctx.Err() != nil {
			return Readable{}, err
		}
		r.log.Warn("make readable branch", zap.String("session", r.session), zap.Error(err))
		return Readable{}, nil
	}
	if branch.Tip.IsZero() || branch.Tip == p.readable {
		return Readable{}, nil
	}
	send.Updates = append(send.Updates, transport.RefUpdate{Name: ReadableRef(r.session), Old: p.readable, New: branch.Tip})
	send.Pack = joinPacks(p.Format, branch.Pack, send.Pack)
	return branch, nil
}

// rejectAll returns a slice with the same error, why, as the result of each update.
func rejectAll(updates []transport.RefUpdate, why error) []error {
	all := make([]error, len(updates))
	for i := range all {
		all[i] = why
	}
	return all
}

// packOf returns a function that writes a pack of the objects, or nil if there are no objects.
func packOf(f object.Format, objects []odb.Outgoing) func(context.Context, io.Writer) error {
	if len(objects) == 0 {
		return nil
	}
	return func(ctx context.Context, w io.Writer) error { return odb.WritePack(ctx, w, f, objects) }
}

// nextContainer is a container that was built and is ready to be sent.
type nextContainer struct {
	id       object.ID              // commit of the container
	manifest manifest               // manifest of the container
	objects  []odb.Outgoing         // objects that the session remote lacks
	ids      map[string][]object.ID // ids of the objects in each new pack, by the pack's name
	dir      string                 // directory of the pack files
	alone    bool                   // whether the container's commit has no parent
	// anew is set if the container was rewritten, so that it contains only objects that are reachable from its refs.
	anew bool
}

// next builds the container that replaces the container with the commit p.tip. The caller holds r.loading, and removes n.dir after
// the push.
func (r *Remote) next(ctx context.Context, p *Push, m manifest, load Load, keepOld bool) (n *nextContainer, err error) {
	place, err := r.place()
	if err != nil {
		return nil, err
	}
	n = &nextContainer{ids: map[string][]object.ID{}}
	if n.dir, err = os.MkdirTemp(place, nextPrefix); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(n.dir)
		}
	}()
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
	if len(ids) > 0 {
		joined, rest := r.join(m.Packs)
		m.Packs = rest
		if err := load.Write(ctx, n.dir, append(slices.Clone(ids), joined...)); err != nil {
			return nil, err
		}
	}
	if err := n.addPacks(p.Format, &m); err != nil {
		return nil, err
	}
	if len(ids) > 0 && load.Bases != nil {
		if err := r.addBases(ctx, p.Format, n, &m, load); err != nil {
			return nil, err
		}
	}
	var before object.ID
	// A rewritten container gets no parent. So no ref reaches the old containers any more, and gc on the session remote can delete
	// them.
	if n.anew && !keepOld {
		n.alone = true
	} else {
		before = p.tip
	}
	n.manifest = m
	return n, n.addCommit(p.Format, before)
}

// join chooses small packs to be joined with the new objects. It returns the ids of the objects in these packs, and the packs
// that stay separate. If there are fewer than joinAt small packs, it chooses none.
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
	// Choose the newest packs, and older packs as long as these are not much larger than all chosen packs together. So a byte
	// that is sent again becomes part of a considerably larger pack each time.
	joined, size := map[string]bool{}, int64(0)
	for i := len(small) - 1; i >= 0; i-- {
		p := small[i]
		if len(joined) >= joinLess && p.Size > 2*size {
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

// addBases adds packs of objects of the mounted repository. No session depends on them, so a failure to make them does not delay the
// push.
func (r *Remote) addBases(ctx context.Context, f object.Format, n *nextContainer, m *manifest, load Load) error {
	dir := join(n.dir, baseDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if len(m.Bases) >= maxBases {
		m.Bases = nil
	}
	if err := load.Bases(ctx, dir, len(m.Bases) == 0); err != nil {
		if ctx.Err() != nil {
			return err
		}
		r.log.Warn("add objects of the base to container", zap.String("session", r.session), zap.Error(err))
		return nil
	}
	files, err := filepath.Glob(join(disk.QuoteGlob(dir), "*.pack"))
	if err != nil {
		return err
	}
	for _, file := range files {
		blob, err := fileBlob(f, file)
		if err != nil {
			return err
		}
		m.Bases = append(m.Bases, packEntry{packName(m.Next), blob.ID, blob.Size})
		m.Next++
		n.objects = append(n.objects, blob)
	}
	return nil
}

// addPacks adds the pack files in n.dir to the container, and assigns the next free numbers to them.
func (n *nextContainer) addPacks(f object.Format, m *manifest) error {
	files, err := filepath.Glob(join(disk.QuoteGlob(n.dir), "*.pack"))
	if err != nil {
		return err
	}
	for _, file := range files {
		blob, err := fileBlob(f, file)
		if err != nil {
			return err
		}
		name := packName(m.Next)
		m.Next++
		text, err := os.ReadFile(strings.TrimSuffix(file, ".pack") + ".idx")
		if err != nil {
			return err
		}
		if n.ids[name], err = session.PackIDs(f, text); err != nil {
			return err
		}
		m.Packs = append(m.Packs, packEntry{name, blob.ID, blob.Size})
		n.objects = append(n.objects, blob)
	}
	return nil
}

// fileBlob returns the blob with the contents of the file called name. The file must not be removed before the blob was sent.
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

// addCommit adds the manifest, the trees and the commit of the container. The parameter before is the commit's parent, or zero if
// the commit gets no parent.
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
	for _, d := range []struct { // in the order that a tree has
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

// arrived records that the session remote has accepted the container n.
func (r *Remote) arrived(n *nextContainer) error {
	r.set(n.id, n.manifest)
	err := r.writeIDs(n.manifest, n.ids)
	if n.anew {
		err = errors.Join(err, r.rewritten())
	}
	return errors.Join(err, r.writeState(state{Tip: n.id, Manifest: n.manifest}))
}
