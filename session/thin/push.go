package thin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
)

const (
	// PackSize is the maximum size of a pack of a container in bytes, except for a pack with one large object.
	PackSize = 32 << 20
	fullPack = PackSize / 2 // packs of at least this size in bytes are not joined with others
	joinAt   = 32           // number of smaller packs at which some of them are joined
	minJoin  = joinAt / 2   // minimum number of packs that are joined at once
	maxBases = 16           // number of packs below base/ at which they are replaced by a new one
)

// Push is a push to a session remote that was started by OpenPush. The method Send sends the updates.
type Push struct {
	transport.Receiver
	remote *Remote         // Remote that started the push
	push   *transport.Push // push to the session remote, which sends the data
	// thin states that the session uses a container. tip is the commit of the container that the push replaces; it is
	// zero if there is no container yet.
	thin bool
	tip  object.ID
	// readable is the present commit of the readable branch on the session remote.
	readable object.ID
}

// Load describes the objects that a push of a session with a container sends.
type Load struct {
	Direct []odb.Outgoing // objects that are reachable from the updated ordinary refs
	// ids of objects that are reachable from the refs in the container and that the container lacks
	Contained []object.ID
	Base      Base // history of the mounted repository to which these objects refer
	// All returns the ids of all objects that are reachable from refs. It is called if the container has to be
	// rewritten with only these objects. The result ok is false if this host does not know all of them.
	All func(ctx context.Context, refs map[string]object.ID) (ids []object.ID, ok bool, err error)
	// Write writes packs of the objects ids into the directory dir. It returns the ids of the objects in each pack, by the
	// path of the pack. No pack is much larger than PackSize. Write leaves out objects that no longer exist on this host.
	Write func(ctx context.Context, dir string, ids []object.ID) (packs map[string][]object.ID, err error)
	// Bases writes packs of objects of the mounted repository into the directory dir, so that readers can compare the
	// files of the session with them. If all is false, objects that earlier calls have written need not be written
	// again. Objects that are not on this host are left out. Bases may be nil.
	Bases func(ctx context.Context, dir string, all bool) error
	// Pushed is called when the session remote has accepted the container. Pushed may be nil.
	Pushed func()
	// Readable returns the new commit of the readable branch, whose present commit is old. It may write files to the
	// directory dir. If anew is set, older commits of the branch must not be reachable from the new one. Readable,
	// Write and Bases are called concurrently. Readable may be nil.
	Readable func(ctx context.Context, dir string, old object.ID, anew bool) (Readable, error)
}

// OpenPush starts a push. It requests the refs of the session remote that begin with one of the prefixes, or all refs
// if there are no prefixes.
func (r *Remote) OpenPush(ctx context.Context, prefixes []string) (*Push, error) {
	asked := prefixes
	if r.session != "" {
		asked = r.withContainerRefs(prefixes)
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
	// A push replaces the container as a whole, by one compare-and-swap of its ref, so it can change or delete any number
	// of the refs in the container atomically.
	if p.thin {
		p.Atomic, p.Delete = true, true
	}
	return p, nil
}

// OpenPushOf starts a push of ordinary refs without requesting refs. The parameter refs contains the refs that the
// session remote is known to have, as for transport.Remote.OpenPushOf.
func (r *Remote) OpenPushOf(ctx context.Context, refs []transport.Ref) (*Push, error) {
	push, err := r.Remote.OpenPushOf(ctx, refs)
	if err != nil {
		return nil, err
	}
	return &Push{Receiver: push.Receiver, remote: r, push: push}, nil
}

// Thin reports whether the push goes to a container.
func (p *Push) Thin() bool { return p.thin }

// UseContainer makes the session use a container from this push on.
func (p *Push) UseContainer() error {
	owner, err := p.remote.owner(p.Format)
	if err != nil {
		return err
	}
	p.remote.UseContainer()
	p.thin, p.Atomic, p.Delete = true, true, true
	p.Refs = slices.DeleteFunc(slices.Clone(p.Refs),
		func(ref transport.Ref) bool { return !direct(ref.Name, p.remote.session) })
	p.Refs = append(p.Refs, owner)
	return nil
}

// Direct reports whether ref is stored as an ordinary ref even if the session uses a container.
func (p *Push) Direct(ref string) bool { return direct(ref, p.remote.session) }

// Close ends the push. If Send was not called, the session remote does not change.
func (p *Push) Close() { p.push.Close() }

// Send updates refs by compare-and-swap, as transport.Push.Send does, and returns the result of each update. If the
// session uses a container, Send pushes the objects that load describes instead of req.Pack.
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
	// moved is the result of each update if another process has replaced the container. The caller then lists the refs
	// again and retries the push.
	moved := &transport.Rejected{Ref: Ref(r.session), Kind: transport.RejectMoved,
		Text: "container was changed by another process"}
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
	branch := next.branch
	if !branch.Tip.IsZero() {
		send.Updates = append(send.Updates, transport.RefUpdate{Name: ReadableRef(r.session), Old: p.readable,
			New: branch.Tip})
		send.Pack = joinPacks(p.Format, branch.Pack, send.Pack)
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
			// The readable branch is only a copy for people. It must not prevent the push of the container, so do not
			// push it any more.
			r.log.Warn("push readable branch", zap.String("session", r.session), zap.Error(result))
			r.mu.Lock()
			r.unreadable = true
			r.mu.Unlock()
			if last != nil {
				return rejectAll(req.Updates, moved), nil // the caller retries
			}
		}
	}
	// The push succeeds even if this record of it cannot be stored on this host: the next push then fetches the same data
	// from the session remote.
	if last == nil {
		if err := r.recordPush(next); err != nil {
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

// nextReadable returns the new commit of the readable branch. It is zero if the branch does not change, if its commit
// cannot be made, or if the session remote has refused the branch before.
func (r *Remote) nextReadable(ctx context.Context, p *Push, load Load, n *nextContainer) (Readable, error) {
	r.mu.Lock()
	refused := r.unreadable
	r.mu.Unlock()
	if load.Readable == nil || refused {
		return Readable{}, nil
	}
	branch, err := load.Readable(ctx, n.dir, p.readable, n.anew)
	if err != nil {
		if ctx.Err() != nil {
			return Readable{}, err
		}
		r.log.Warn("make readable branch", zap.String("session", r.session), zap.Error(err))
		return Readable{}, nil
	}
	if branch.Tip == p.readable {
		return Readable{}, nil
	}
	return branch, nil
}

// rejectAll returns the error why as the result of each update.
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
