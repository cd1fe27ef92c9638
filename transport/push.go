package transport

import (
	"context"
	"errors"
	"io"

	"github.com/artifactfs/artifactfs/object"
)

// Receiver is what a server says of itself to who wants to push.
type Receiver struct {
	Format object.Format
	Atomic bool        // it can make all updates or none
	Delete bool        // it removes refs
	Refs   []Ref       // all that it shows; no peeled ids, no symbolic refs
	Have   []object.ID // tips of others that it borrows objects from
	Agent  string

	report, sideBand, quiet, ofsDelta, sessionFormat bool
}

// RefUpdate moves a ref of the server if it is what it is taken for.
type RefUpdate struct {
	Name string
	Old  object.ID // zero: there is no such ref
	New  object.ID // zero: it goes
}

// PushRequest asks to move refs.
type PushRequest struct {
	Updates []RefUpdate
	// Pack writes a pack that needs no other: what the server lacks of the new ids. It is called once an attempt. Nil: the
	// server has it all.
	Pack   func(ctx context.Context, w io.Writer) error
	Atomic bool              // all updates or none, if the server can
	Said   func(text string) // is told what the server prints for the user; may be nil
}

// PushResult says what became of a push that came to an end.
type PushResult struct {
	// Refs stand for the updates, in their order: nil, or a *Rejected.
	Refs []error
}

// RejectKind sorts the reasons for which servers refuse an update.
type RejectKind uint8

const (
	RejectOther       RejectKind = iota // said in words that are not known
	RejectMoved                         // the ref was not what it was taken for
	RejectFastForward                   // the server forbids rewriting
	RejectDeletion                      // it forbids removal
	RejectHook                          // a hook said no
	RejectMissing                       // it lacks objects that the new id needs
	RejectUnpack                        // it could not keep the pack
	RejectAtomic                        // another update of the same push was refused
	RejectShallow                       // it does not want history without its beginning
)

// Rejected is why a server refused an update.
type Rejected struct {
	Ref  string
	Kind RejectKind
	Text string // its words
}

func (e *Rejected) Error() string { return "server refuses " + e.Ref + ": " + e.Text }

// Receiver asks the server what it has and takes.
func (r *Remote) Receiver(ctx context.Context) (Receiver, error) {
	return Receiver{}, errors.ErrUnsupported
}

// Push moves refs of the server by compare-and-swap. It fails as a whole, or tells of each update. A fault after which
// nobody knows whether the server has done it is settled by asking anew, so an update is never reported refused because
// of its own success.
func (r *Remote) Push(ctx context.Context, req PushRequest) (PushResult, error) {
	return PushResult{}, errors.ErrUnsupported
}
