package transcript

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// The memory of agents consists of the files in which agents store conversations. It is part of the transcript, because
// it contains the same prompts and answers: it is pushed, forked, erased and expired with the transcript. It is in a
// directory of its own, because it is much larger than the records, and no reader of records needs it. Versions that do
// not know the directory keep it unchanged, and find no records in it. Its name sorts before those of all days.
const memoryDir = ".memory"

const (
	maxMemoryFile = 2 << 20 // maximum size in bytes of a file of memory that is read
	maxMemoryPage = 1 << 20 // size in bytes of the files at which ReadMemory ends a page
)

// MemoryPath reports whether the path, relative to the root of a transcript, is in the memory of agents.
func MemoryPath(path string) bool { return inMemory(path) }

func inMemory(path string) bool { return strings.HasPrefix(path, memoryDir+"/") }

// memoryDays returns the directories of the days that have memory. root contains the entries of the root.
func (s Source) memoryDays(root []object.TreeEntry) ([]object.TreeEntry, error) {
	for _, e := range root {
		if e.Name == memoryDir && e.Mode == object.ModeDir {
			return s.Repo.Tree(e.ID)
		}
	}
	return nil, nil
}

// memoryFiles returns the files of the memory in the transcript at the commit head.
func (s Source) memoryFiles(head object.ID) ([]object.TreeEntry, error) {
	root, err := treeOf(s.Repo, head)
	if err != nil {
		return nil, err
	}
	days, err := s.memoryDays(root)
	if err != nil {
		return nil, err
	}
	return s.files(days)
}

// fetchMemory fetches the contents of the memory that are missing on this host.
func (s Source) fetchMemory(head object.ID) error {
	files, err := s.memoryFiles(head)
	if err != nil {
		return fmt.Errorf("read memory: %w", err)
	}
	if err := s.fetch(files); err != nil {
		return fmt.Errorf("fetch memory: %w", err)
	}
	return nil
}

// ReadMemory returns one page of the memory of the session name, in no particular order. after is "" for the first
// page, and otherwise the result next of the page before. next is "" for the last page.
func (s Source) ReadMemory(name, after string) (lines []Line, next string, err error) {
	head, err := Head(s.Repo, name)
	if err != nil {
		return nil, "", fmt.Errorf("read memory: %w", err)
	}
	if after == "" {
		if err := s.fetchMemory(head); err != nil {
			return nil, "", err
		}
	}
	files, err := s.memoryFiles(head)
	if err != nil {
		return nil, "", fmt.Errorf("read memory: %w", err)
	}
	size := 0
	for i, f := range files {
		if f.Name <= after {
			continue
		}
		_, text, err := s.Repo.Get(f.ID, maxMemoryFile)
		if err != nil {
			return nil, "", fmt.Errorf("read memory: %w", err)
		}
		for line := range bytes.Lines(text) {
			// skip a line that cannot be parsed, because a later version may have written it
			if l, err := ParseLine(line); err == nil {
				lines = append(lines, l)
			}
		}
		if size += len(text); size >= maxMemoryPage && i+1 < len(files) {
			return lines, f.Name, nil
		}
	}
	return lines, "", nil
}

// conversations returns the conversations of the records that IDs selects. The records of agents name them.
func (e EraseRequest) conversations(lines map[string]Line) map[string]bool {
	all := map[string]bool{}
	for id := range e.IDs {
		if name := conversationOf(lines[id].Record); name != "" {
			all[name] = true
		}
	}
	return all
}

// conversationOf returns the conversation that a record of an agent, or a line of its memory, belongs to; "" if none.
func conversationOf(record json.RawMessage) string { return markersOf(record).Session }

// memoryMarkers contains the members of a line of memory by which Erase selects lines.
type memoryMarkers struct {
	Session string `json:"agent_session"`
	Time    string `json:"time"` // time at which the agent has written the line, as in RFC 3339
}

func markersOf(record json.RawMessage) memoryMarkers {
	var m memoryMarkers
	_ = json.Unmarshal(record, &m) // a member that has an unexpected type counts as missing
	return m
}

// wantsMemory reports whether the request selects the line l of memory. spoiled contains conversations of which it
// selects all lines.
func (e EraseRequest) wantsMemory(l Line, spoiled map[string]bool) bool {
	m := markersOf(l.Record)
	if at, err := time.Parse(time.RFC3339Nano, m.Time); err == nil && at.Before(l.Time) {
		l.Time = at // the line was stored only at the end of a turn
	}
	return e.wants(l) || spoiled[m.Session]
}

// dropLines returns text without the lines for which the function drop returns true, and the number of these lines. It
// keeps lines that cannot be parsed.
func dropLines(text []byte, drop func(Line) bool) (left []byte, gone int) {
	for line := range bytes.Lines(text) {
		if l, err := ParseLine(line); err == nil && drop(l) {
			gone++
			continue
		}
		left = append(left, line...)
	}
	return left, gone
}
