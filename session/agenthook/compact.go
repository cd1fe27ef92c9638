package agenthook

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session/transcript"
)

const (
	maxKept     = 512 << 10 // maximum total size in bytes of the texts that are kept of one compaction
	maxFileRead = 64 << 20  // maximum number of bytes at the end of an agent's file that are read
	maxFileLine = 4 << 20   // maximum size in bytes of a line of an agent's file; longer lines have no text of interest
	maxTime     = 40        // maximum size in bytes of the time of a text
)

// Texts contains the texts of an agent that a compaction removes from its context. The hooks receive no texts between
// two tool calls, so only the agent's own file of the conversation has them.
type Texts struct {
	Lines  []string // records for the transcript, the oldest text first
	Starts []int64  // offset in the file at which the text of each record starts
	Left   int      // number of older texts that were left out, because the texts have a maximum total size
	End    int64    // offset in the file up to which it was read
}

// fileLine contains the members of a line of the files in which claude and codex store conversations.
type fileLine struct {
	Type    string  `json:"type"`
	Time    string  `json:"timestamp"`
	Side    bool    `json:"isSidechain"` // claude: a line of a sub-agent
	Message message `json:"message"`     // claude
	Payload message `json:"payload"`     // codex

	start int64 // offset of the line in the part of the file that is read
}

type message struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// ReadTexts reads the texts that the agent has written since its latest compaction, from the file that the event e
// names. It reads the file from the offset from. Thoughts, and the texts of sub-agents, are not among them.
func ReadTexts(e Event, from int64) (found Texts, err error) {
	if e.File == "" {
		return found, nil
	}
	if filepath.Ext(e.File) != ".jsonl" {
		return found, fmt.Errorf("read conversation %s: file is not in the format JSON Lines", e.File)
	}
	f, err := disk.OpenRegular(e.File, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return found, fmt.Errorf("read conversation: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return found, err
	}
	if from < 0 || from > info.Size() {
		from = 0 // it is another file
	}
	from = max(from, info.Size()-maxFileRead)
	var texts []fileLine
	found.End, err = eachLine(io.NewSectionReader(f, from, info.Size()-from), func(line []byte, start int64) {
		switch {
		case compacts(line):
			texts = texts[:0]
		case bytes.Contains(line, []byte(`"assistant"`)):
			l := fileLine{start: start}
			if json.Unmarshal(line, &l) == nil && !l.Side && l.text() != "" {
				texts = append(texts, l)
			}
		}
	})
	found.End += from
	if err != nil {
		return found, fmt.Errorf("read conversation %s: %w", e.File, err)
	}
	size := 0
	for i := len(texts) - 1; i >= 0; i-- {
		// Redact before the text is cut, so that no part of a secret remains.
		text, _ := transcript.Redact(texts[i].text())
		text = cut(text, maxString)
		if size += len(text); size > maxKept {
			found.Left = i + 1
			break
		}
		line, err := json.Marshal(record{Type: "message", Role: "assistant", Agent: e.Agent, Session: e.Session,
			Text: text, Time: limit(texts[i].Time, maxTime), Compacted: true})
		if err != nil {
			return found, err
		}
		found.Lines, found.Starts = append(found.Lines, string(line)), append(found.Starts, from+texts[i].start)
	}
	slices.Reverse(found.Lines)
	slices.Reverse(found.Starts)
	return found, nil
}

// eachLine calls do for each line of r, with at most maxFileLine bytes of the line and with its offset, and returns the
// number of bytes of all complete lines. It skips an incomplete line at the end, which the agent is still writing.
func eachLine(r io.Reader, do func(line []byte, start int64)) (n int64, err error) {
	b := bufio.NewReaderSize(r, maxFileLine)
	for {
		line, err := b.ReadSlice('\n')
		size := int64(len(line))
		if errors.Is(err, bufio.ErrBufferFull) {
			do(line, n)
			for errors.Is(err, bufio.ErrBufferFull) {
				line, err = b.ReadSlice('\n')
				size += int64(len(line))
			}
		} else if err == nil {
			do(line, n)
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		n += size
	}
}

// compacts reports whether the agent has written a line because it has compacted the conversation. The line of codex
// has the whole new context behind its type, so it may be cut.
func compacts(line []byte) bool {
	if bytes.Contains(line[:min(len(line), 200)], []byte(`"type":"compacted"`)) {
		return true
	}
	var l struct {
		Type, Subtype string
	}
	return bytes.Contains(line, []byte(`"compact_boundary"`)) && json.Unmarshal(line, &l) == nil && l.Type == "system" &&
		l.Subtype == "compact_boundary"
}

// text returns the text that the agent has written in a line, or "" if the line has none.
func (l fileLine) text() string {
	m := l.Message
	if l.Type == "response_item" && l.Payload.Type == "message" {
		m = l.Payload
	} else if l.Type != "assistant" {
		return ""
	}
	if m.Role != "assistant" {
		return ""
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(m.Content, &parts) != nil {
		return ""
	}
	var texts []string
	for _, p := range parts {
		if (p.Type == "text" || p.Type == "output_text") && strings.TrimSpace(p.Text) != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}
