package workday

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Entry is one line of a ledger.
type Entry struct {
	At     time.Time `json:"at"`
	Step   string    `json:"step"`
	Begins bool      `json:"begins,omitempty"` // true if the line was written before a step; State is then not set
	Script string    `json:"script,omitempty"` // shell script of the step
	Moment int64     `json:"moment,omitempty"` // time of the commits that the step makes, in seconds since 1970
	State  State     `json:"state,omitzero"`   // state after the step

	// These fields are set in a promise. Since is the time from which the tree is in this State. Checkpoint is the
	// checkpoint that contains the State, if it is known. Synced states whether the checkpoint is on the session
	// remote.
	Promise    bool      `json:"promise,omitempty"`
	Since      time.Time `json:"since,omitzero"`
	Checkpoint string    `json:"point,omitempty"`
	Synced     bool      `json:"synced,omitempty"`

	Fault string `json:"fault,omitempty"` // fault that the worker has found in the tree; "" if none
}

// ledger is a file to which lines are appended. The lines remain if the writer is killed.
type ledger struct{ *os.File }

func (l ledger) add(e Entry) error {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.Write(append(line, '\n'))
	}
	return err
}

// ReadLedger returns the entries that a worker has written. It leaves out an incomplete last line.
func ReadLedger(path string) ([]Entry, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	var all []Entry
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("read ledger: %w", err)
		}
		all = append(all, e)
	}
	return all, nil
}

// alive returns the entries of a ledger without faults that the worker found after the kill of the daemon. The worker
// runs a moment longer than the daemon. In this time the mount shows no tree, so the State in the entry is an earlier
// one, and the step was not complete.
func alive(all []Entry, killed time.Time) []Entry {
	return slices.DeleteFunc(all, func(e Entry) bool { return e.Fault != "" && e.At.After(killed) })
}

// described returns the steps of a ledger with their scripts, and the trees and heads after them, a line for each
// entry.
func described(all []Entry) string {
	var b strings.Builder
	for _, e := range all {
		at := e.At.Format("15:04:05.000")
		switch {
		case e.Begins:
			fmt.Fprintf(&b, "%s %s: %s\n", at, e.Step, e.Script)
		case e.Promise:
			fmt.Fprintf(&b, "%s promise: checkpoint %s\n", at, e.Checkpoint)
		default:
			fmt.Fprintf(&b, "%s end of %s: tree %s, HEAD %s\n", at, e.Step, e.State.Tree, e.State.Head)
		}
	}
	return b.String()
}
