package checkout

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

const (
	// journalFile is the name of the journal in a mount's home, its directory below the state directory.
	journalFile = "checkout.json"
	// journalVersion is the highest version of the journal that this program reads.
	journalVersion = 1
)

// Intent is the record of a checkout that has begun. Because the checkout changes HEAD, the intent does not refer to
// HEAD: it contains full names of branches, and IDs of commits and checkpoints. Exactly one field is set.
type Intent struct {
	Switch    *SwitchIntent    `json:"switch,omitempty"`
	Restore   *RestoreIntent   `json:"restore,omitempty"`
	Worktrees *WorktreesIntent `json:"worktrees,omitempty"`
}

// WorktreesIntent is the record of a restore of linked worktrees whose directories do not exist any more.
type WorktreesIntent struct {
	State string `json:"state"` // ID of the commit that stores the state of a checkpoint, which lists the linked worktrees
	// paths of the linked worktrees to restore; if empty, all that the state lists
	Paths []string `json:"paths,omitempty"`
}

// SwitchIntent is the record of a switch of HEAD.
type SwitchIntent struct {
	Ref string `json:"ref"` // branch or commit ID to switch to; if Create is set, the starting point of the new branch
	// Create is the branch to create; "" to create none.
	Create string `json:"create,omitempty"`
	// Detach states that the switch detaches HEAD instead of moving HEAD to a branch.
	Detach bool `json:"detach,omitempty"`
	// Forward is the ID of the commit to which the branch Ref is moved while HEAD refers to it; "" if HEAD itself is
	// moved.
	Forward string `json:"forward,omitempty"`
}

// RestoreIntent is the record of a restore of files from a checkpoint.
type RestoreIntent struct {
	Checkpoint session.CheckpointID `json:"checkpoint"`
	// Before is the checkpoint that was made before the restore. The user can undo the restore with it.
	Before session.CheckpointID `json:"before"`
	Paths  []string             `json:"paths,omitempty"`  // paths to restore, relative to the root; if empty, all paths
	Staged bool                 `json:"staged,omitempty"` // whether the index is restored in addition to the files
	// Nonce is the nonce of the client's request. Another request with the same nonce is a repetition.
	Nonce string `json:"nonce,omitempty"`
}

// Journal stores the intents of the unfinished checkouts of one mount, in a file of the mount's home. The file exists
// only while there is an intent. The methods may be called concurrently.
type Journal struct {
	home string // path of the mount's home

	mu   sync.Mutex
	open []*Pending // open intents, in the order in which they began; protected by mu
}

// Pending is an intent in a Journal, whose checkout has begun and has not ended.
type Pending struct {
	Intent
	Err error // error of reading the recorded intent; if it is not nil, only End may be called

	journal *Journal
	left    bool // whether the checkout has failed and some paths may stay changed; protected by journal.mu
}

// journalText is the contents of the file of a Journal, in JSON.
type journalText struct {
	Version int      `json:"version"`
	Intents []Intent `json:"intents"`
}

// OpenJournal returns the journal of the mount with the given home, with the intents that killed processes have left.
// The caller must end each of these intents. If the file cannot be read, the journal has one intent, whose field Err is
// set.
func OpenJournal(home string) *Journal {
	j := &Journal{home: home}
	all, err := j.read()
	if err != nil {
		j.open = append(j.open, &Pending{Err: err, journal: j})
	}
	for _, in := range all.Intents {
		j.open = append(j.open, &Pending{Intent: in, Err: in.check(), journal: j})
	}
	return j
}

// String returns a description of the intent for messages.
func (in Intent) String() string {
	switch {
	case in.Worktrees != nil:
		return "the restore of linked worktrees"
	case in.Restore != nil:
		return "the restore of checkpoint " + string(in.Restore.Checkpoint)
	case in.Switch != nil && in.Switch.Forward != "":
		return "the move to " + in.Switch.Forward
	case in.Switch != nil:
		return "the switch to " + cmp.Or(in.Switch.Create, in.Switch.Ref)
	}
	return "a change"
}

// check returns an error unless exactly one field of the intent is set.
func (in Intent) check() error {
	set := 0
	for _, is := range []bool{in.Switch != nil, in.Restore != nil, in.Worktrees != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("read %s: intent does not have exactly one operation", journalFile)
	}
	return nil
}

// read returns the contents of the journal's file, or no intents if there is no file.
func (j *Journal) read() (all journalText, err error) {
	text, err := os.ReadFile(filepath.Join(j.home, journalFile))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err == nil && all.Version > journalVersion {
		err = fmt.Errorf("unknown version %d", all.Version)
	}
	if err != nil {
		return journalText{}, fmt.Errorf("read %s: %w", journalFile, err)
	}
	return all, nil
}

// Pending returns the intents of all checkouts that have begun and have not ended, the oldest first.
func (j *Journal) Pending() []*Pending {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.open)
}

// Unfinished returns the intents of checkouts that have failed and could not be undone, or whose repetition has failed,
// the oldest first.
func (j *Journal) Unfinished() []*Pending {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.open), func(p *Pending) bool { return !p.left })
}

// Leave adds the intent to those that Unfinished returns, because its checkout has failed and some paths may stay
// changed. It reports whether the intent was one of them before.
func (p *Pending) Leave() (before bool) {
	p.journal.mu.Lock()
	defer p.journal.mu.Unlock()
	before, p.left = p.left, true
	return before
}

// Begin adds an intent to the journal. The intent is on disk when Begin returns.
func (j *Journal) Begin(in Intent) (*Pending, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := &Pending{Intent: in, journal: j}
	next := append(slices.Clone(j.open), p)
	if err := j.write(next); err != nil {
		return nil, err
	}
	j.open = next
	return p, nil
}

// End removes the intent from the journal, because the checkout was carried out or cannot be carried out. If the intent
// was removed before, End has no effect.
func (p *Pending) End() error {
	j := p.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	next := slices.DeleteFunc(slices.Clone(j.open), func(o *Pending) bool { return o == p })
	if len(next) == len(j.open) {
		return nil
	}
	if err := j.write(next); err != nil {
		return err
	}
	j.open = next
	return nil
}

// write replaces the journal's file by one with the given intents, or removes the file if there are none. The caller
// must hold j.mu.
func (j *Journal) write(open []*Pending) error {
	all := journalText{Version: journalVersion}
	for _, p := range open {
		if p.Err == nil {
			all.Intents = append(all.Intents, p.Intent)
		}
	}
	name := filepath.Join(j.home, journalFile)
	if len(all.Intents) == 0 {
		return remove(name)
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = disk.WriteFile(name, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write checkout journal: %w", err)
	}
	return nil
}

// remove removes the file name. It returns nil if the file does not exist.
func remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
