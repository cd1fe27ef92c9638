package transcript

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
)

// Facts and the handoff are stored in the tree of session.FactsRef, as facts.json and handoff.md. That ref is separate
// from the transcript, so facts and handoff are kept when records are erased.
const (
	factsFile   = "facts.json"
	handoffFile = "handoff.md"
	maxFacts    = 1 << 20 // maximum size of each file in bytes
)

var (
	// ErrNoFact means that no fact has the requested id.
	ErrNoFact = errors.New("no such fact")
	// ErrTooLong means that the facts or the handoff are longer than maxFacts bytes.
	ErrTooLong = errors.New("text is longer than 1 MiB")
)

// Fact is a short text for the users and agents that resume a session.
type Fact struct {
	ID   string    `json:"id"`   // id of the fact, a ULID
	Time time.Time `json:"time"` // time at which the fact was added
	// By is the name of the user or program that added the fact.
	By   string `json:"by"`
	Text string `json:"text"` // text of the fact
}

// Facts contains the facts of a session, oldest first, and its handoff.
type Facts struct {
	Facts   []Fact
	Handoff string // text that describes the state of the work; "" if there is no handoff
}

// ReadFacts returns the facts and the handoff of the session name, and the commit that stores them, which is zero if
// there are none. The function provide fetches contents that are missing on this host by their ids; it is nil if none
// is missing.
func ReadFacts(r *session.Repo, name string, provide func(ids []object.ID) error) (f Facts, head object.ID, err error) {
	if head, err = r.Ref(session.FactsRef(name)); err != nil {
		return f, head, fmt.Errorf("read facts: %w", err)
	}
	files, err := treeOf(r, head)
	if err != nil {
		return f, head, fmt.Errorf("read facts: %w", err)
	}
	for _, e := range files {
		// Contents that another machine has pushed may be missing on this host.
		if _, _, err := r.Size(e.ID); err != nil && provide != nil {
			if err := provide([]object.ID{e.ID}); err != nil {
				return f, head, fmt.Errorf("fetch facts: %w", err)
			}
		}
		_, text, err := r.Get(e.ID, maxFacts)
		if err != nil {
			return f, head, fmt.Errorf("read facts: %w", err)
		}
		switch e.Name {
		case factsFile:
			if err := json.Unmarshal(text, &f.Facts); err != nil {
				return f, head, fmt.Errorf("read facts: %w", err)
			}
		case handoffFile:
			f.Handoff = string(text)
		}
	}
	return f, head, nil
}

// FactsChange describes a change of the facts and the handoff of a session.
type FactsChange struct {
	Session string    // session whose facts are changed
	By      string    // user or program that adds the new facts
	Time    time.Time // time of the change
	// Add contains the texts of new facts; nil adds none.
	Add []string
	// Remove is the id of the fact to remove; "" removes no fact.
	Remove string
	// Handoff is the new text of the handoff; nil keeps the old text.
	Handoff *string
}

// ChangeFacts changes the facts and the handoff of a session, and removes secrets from the new texts. It returns the
// result and the number of removed secrets. The function provide fetches contents that are missing on this host by
// their ids; it is nil if none is missing.
func ChangeFacts(ctx context.Context, r *session.Repo, c FactsChange,
	provide func(ids []object.ID) error) (f Facts, redacted int64, err error) {
	defer r.Working()()
	for range tries {
		if f, redacted, err = c.make(ctx, r, provide); !errors.Is(err, session.ErrRefMoved) {
			break
		}
	}
	return f, redacted, err
}

// make makes one attempt of ChangeFacts. It returns an error that wraps session.ErrRefMoved if another process changes
// the ref at the same time.
func (c FactsChange) make(ctx context.Context, r *session.Repo,
	provide func(ids []object.ID) error) (f Facts, redacted int64, err error) {
	f, head, err := ReadFacts(r, c.Session, provide)
	if err != nil {
		return f, 0, err
	}
	if c.Remove != "" {
		i := slices.IndexFunc(f.Facts, func(f Fact) bool { return f.ID == c.Remove })
		if i < 0 {
			return f, 0, fmt.Errorf("remove fact %.40s: %w", c.Remove, ErrNoFact)
		}
		f.Facts = slices.Delete(f.Facts, i, i+1)
	}
	for _, text := range c.Add {
		clean, n := Redact(text)
		redacted += n
		f.Facts = append(f.Facts, Fact{ID: string(session.NewCheckpointID(c.Time)), Time: c.Time, By: c.By, Text: clean})
	}
	if c.Handoff != nil {
		clean, n := Redact(*c.Handoff)
		redacted += n
		f.Handoff = clean
	}
	text, err := json.MarshalIndent(f.Facts, "", "  ")
	if err != nil {
		return f, 0, err
	}
	// Check the limit before anything is written, because ReadFacts cannot read a longer file.
	if len(text) >= maxFacts || len(f.Handoff) > maxFacts {
		return f, 0, fmt.Errorf("write facts: %w", ErrTooLong)
	}
	format := r.Format()
	facts, err := session.Outgoing(format, object.Blob, append(text, '\n'))
	if err != nil {
		return f, 0, err
	}
	handoff, err := session.Outgoing(format, object.Blob, []byte(f.Handoff))
	if err != nil {
		return f, 0, err
	}
	tree, err := session.Outgoing(format, object.Tree, session.EncodeTree([]object.TreeEntry{
		{Name: factsFile, Mode: object.ModeFile, ID: facts.ID}, {Name: handoffFile, Mode: object.ModeFile, ID: handoff.ID},
	}))
	if err != nil {
		return f, 0, err
	}
	commit, err := session.NewCommit(format, tree.ID, head, c.Time, "facts\n\nAfs-Session: "+c.Session+"\n")
	if err != nil {
		return f, 0, err
	}
	err = r.Record(ctx, []odb.Outgoing{facts, handoff, tree, commit},
		[]session.RefChange{{Name: session.FactsRef(c.Session), Old: head, New: commit.ID}})
	return f, redacted, err
}
