package workday

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// Entry is a line of a ledger.
type Entry struct {
	At     time.Time `json:"at"`
	Step   string    `json:"step"`
	Begins bool      `json:"begins,omitempty"` // the line is for the start of a step; State is not set
	Script string    `json:"script,omitempty"` // shell script of the step
	Moment int64     `json:"moment,omitempty"` // time for the commits of the step, in seconds since 1970
	State  State     `json:"state,omitzero"`   // state after the step

	// For a promise: the time since which the tree is in this State, the checkpoint that contains it if the checkpoint is
	// known, and whether the checkpoint is on the session remote.
	Promise    bool      `json:"promise,omitempty"`
	Since      time.Time `json:"since,omitzero"`
	Checkpoint string    `json:"point,omitempty"`
	Synced     bool      `json:"synced,omitempty"`

	Fault string `json:"fault,omitempty"` // fault that the worker has seen in the tree; "": none
}

// ledger is a file to which lines are appended. The lines survive the death of the writer.
type ledger struct{ *os.File }

func (l ledger) add(e Entry) error {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.Write(append(line, '\n'))
	}
	return err
}

// ReadLedger reads the lines that a worker has written. It leaves out an incomplete last line.
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

// alive returns the lines of a ledger without the faults that the worker found after the kill. The worker outlives the daemon by a
// moment, in which the mount shows no tree. The State in such a line is an earlier one, and the step was still in progress.
func alive(all []Entry, killed time.Time) []Entry {
	return slices.DeleteFunc(all, func(e Entry) bool { return e.Fault != "" && e.At.After(killed) })
}
