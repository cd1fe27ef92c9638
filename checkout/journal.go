package checkout

import (
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
	journalFile    = "checkout.json"
	journalVersion = 1

	// Builds before the journal kept one file for each kind of intent.
	oldSwitchFile  = "switch.json"
	oldRestoreFile = "restore.json"
)

// Intent is a checkout that has begun. It names everything in a way that means the same after the checkout is done in
// part: branches and commits by full name or id, checkpoints by id. Exactly one field is set.
type Intent struct {
	Switch  *SwitchIntent  `json:"switch,omitempty"`
	Restore *RestoreIntent `json:"restore,omitempty"`
}

// SwitchIntent is a switch of HEAD. The names of its fields are those of control.SwitchRequest, which earlier builds stored.
type SwitchIntent struct {
	Ref     string `json:"ref"`               // branch or commit id; what Create is made at
	Create  string `json:"create,omitempty"`  // branch to be created; "": none
	Detach  bool   `json:"detach,omitempty"`  // HEAD is on no branch then
	Forward string `json:"forward,omitempty"` // commit id that the branch Ref, which HEAD is on, is moved to; "": HEAD moves
}

// RestoreIntent is a restore of files from a checkpoint.
type RestoreIntent struct {
	Checkpoint session.PointID `json:"checkpoint"`
	Before     session.PointID `json:"before"`           // checkpoint of how things were; it undoes the restore
	Paths      []string        `json:"paths,omitempty"`  // relative to the root; none: all
	Staged     bool            `json:"staged,omitempty"` // the index is restored too
	Nonce      string          `json:"nonce,omitempty"`  // of the request, whose caller may ask again
}

// Journal stores the intents of one mount that have begun and not ended, in a file of the mount's home. A file exists only
// while there is one. Its methods may be called at the same time.
type Journal struct {
	home string

	mu   sync.Mutex
	open []*Pending // in the order in which they began
}

// Pending is an intent that has begun and not ended.
type Pending struct {
	Intent
	Err error // it is on record, but cannot be read; only End makes sense

	journal *Journal
	file    string // of an earlier build, that has this intent alone; "": it is in the journal
}

type journalText struct {
	Version int      `json:"version"`
	Intents []Intent `json:"intents"`
}

// OpenJournal reads the intents that killed processes left in the home of a mount, also in the files of earlier builds. The
// caller ends each of them. A file that cannot be read counts as an intent with an error.
func OpenJournal(home string) *Journal {
	j := &Journal{home: home}
	var all journalText
	_, err := readJSON(filepath.Join(home, journalFile), &all)
	if err == nil && all.Version > journalVersion {
		err = fmt.Errorf("read %s: its version %d is not known", journalFile, all.Version)
	}
	if err != nil {
		j.open = append(j.open, &Pending{Err: err, journal: j})
		all.Intents = nil
	}
	for _, in := range all.Intents {
		j.open = append(j.open, &Pending{Intent: in, Err: in.check(), journal: j})
	}
	j.readOld()
	return j
}

func (in Intent) check() error {
	if (in.Switch == nil) == (in.Restore == nil) {
		return fmt.Errorf("read %s: an intent is neither a switch nor a restore", journalFile)
	}
	return nil
}

// readOld adds the intents that the build before the journal wrote: the request of a switch as it is, and the request of a
// restore with the checkpoint before it. Files were removed when an intent ended, so that both exist only if a kill hit
// two commands.
func (j *Journal) readOld() {
	var s SwitchIntent
	if ok, err := readJSON(filepath.Join(j.home, oldSwitchFile), &s); ok || err != nil {
		j.open = append(j.open, &Pending{Intent: Intent{Switch: &s}, Err: err, journal: j, file: oldSwitchFile})
	}
	var r struct {
		Request struct {
			ID     session.PointID `json:"id"`
			Paths  []string        `json:"paths"`
			Staged bool            `json:"staged"`
			Nonce  string          `json:"nonce"`
		} `json:"request"`
		Before session.PointID `json:"before"`
	}
	if ok, err := readJSON(filepath.Join(j.home, oldRestoreFile), &r); ok || err != nil {
		in := &RestoreIntent{Checkpoint: r.Request.ID, Before: r.Before, Paths: r.Request.Paths, Staged: r.Request.Staged, Nonce: r.Request.Nonce}
		j.open = append(j.open, &Pending{Intent: Intent{Restore: in}, Err: err, journal: j, file: oldRestoreFile})
	}
}

// readJSON reads a file; false: there is none.
func readJSON(name string, into any) (bool, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", filepath.Base(name), err)
	}
	return true, nil
}

// Pending lists the intents that have begun and not ended, the oldest first.
func (j *Journal) Pending() []*Pending {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.open)
}

// Begin records an intent, which is on the disk when Begin returns.
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

// End removes an intent from the record: it was carried out, or cannot be. A second call has no effect.
func (p *Pending) End() error {
	j := p.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	next := slices.DeleteFunc(slices.Clone(j.open), func(o *Pending) bool { return o == p })
	if len(next) == len(j.open) {
		return nil
	}
	var err error
	if p.file != "" {
		err = remove(filepath.Join(j.home, p.file))
	} else {
		err = j.write(next)
	}
	if err == nil {
		j.open = next
	}
	return err
}

// write replaces the journal's file by the intents that belong in it, and removes it if there are none. j.mu is held.
func (j *Journal) write(open []*Pending) error {
	all := journalText{Version: journalVersion}
	for _, p := range open {
		if p.file == "" && p.Err == nil {
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
		return fmt.Errorf("record intent: %w", err)
	}
	return nil
}

// remove removes a file, if it exists.
func remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
