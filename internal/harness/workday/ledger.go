package workday

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Entry is a line of a ledger.
type Entry struct {
	At     time.Time `json:"at"`
	Step   string    `json:"step"`
	Begins bool      `json:"begins,omitempty"` // the step does, at that time; State is not told
	Script string    `json:"script,omitempty"` // of a step that begins
	Moment int64     `json:"moment,omitempty"` // date of the step's commits, in seconds since 1970
	State  State     `json:"state,omitzero"`   // after the step

	// Of a promise: since when the State was as it is, the checkpoint that holds it if it is known, and whether it is on the
	// session remote.
	Promise    bool      `json:"promise,omitempty"`
	Since      time.Time `json:"since,omitzero"`
	Checkpoint string    `json:"point,omitempty"`
	Synced     bool      `json:"synced,omitempty"`

	Fault string `json:"fault,omitempty"` // that the worker saw: the tree did not behave
}

// ledger is written line by line: what is there outlives the writer.
type ledger struct{ *os.File }

func (l ledger) add(e Entry) error {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.Write(append(line, '\n'))
	}
	return err
}

// ReadLedger reads what a worker wrote. A line that its end cut off is left out.
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
