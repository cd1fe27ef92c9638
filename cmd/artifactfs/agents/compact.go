package agents

import (
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// maxBatch is the maximum size in bytes of the records in one request, unless a single record is larger.
const maxBatch = 256 << 10

// recordTexts records the texts that a compaction removes from the context of an agent. The result is the event e with
// the numbers of texts that were recorded and left out. After each request the offset in the agent's file is stored, so
// that a compaction that fails and is repeated records again at most the texts of one request.
//
// The texts of a sub-agent are not recorded: the file is that of the agent that has started it, or the offset is
// unknown.
func recordTexts(ctx context.Context, m cli.Served, gitDir string, e agenthook.Event) (agenthook.Event, error) {
	if e.Sub != "" {
		return e, nil
	}
	if gitDir == "" {
		return e, errors.New("git finds no repository")
	}
	turn, _, err := agenthook.LoadTurn(gitDir, e.Session)
	if err != nil {
		return e, err
	}
	texts, err := agenthook.ReadTexts(e, turn.Compacted)
	if err != nil {
		return e, err
	}
	save := func(offset int64) error {
		if turn.Compacted == offset {
			return nil
		}
		turn.Compacted = offset
		return turn.Save(gitDir, e.Session)
	}
	for lines := texts.Lines; len(lines) > 0; {
		n, size := 0, 0
		for n == 0 || n < len(lines) && size+len(lines[n]) <= maxBatch {
			size, n = size+len(lines[n]), n+1
		}
		_, err := m.Client.SessionRecord(ctx, control.SessionRecordRequest{Dir: m.Dir, Lines: lines[:n]})
		if err != nil {
			return e, err
		}
		if e.Kept, lines = e.Kept+n, lines[n:]; len(lines) > 0 {
			if err := save(texts.Starts[e.Kept]); err != nil {
				return e, err
			}
		}
	}
	e.Left = texts.Left
	return e, save(texts.End)
}
