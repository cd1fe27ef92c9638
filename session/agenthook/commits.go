package agenthook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Turn is the state of an agent's conversation from one event to the next: each runs a process of
// its own. It is stored in the git directory, artifactfs-hooks/CONVERSATION.json, until the
// conversation ends or the hooks are uninstalled.
type Turn struct {
	Prompt string `json:"prompt"` // prompt of the turn, without secrets and shortened
	Reflog int64  `json:"reflog"` // bytes of logs/HEAD whose commits have been found
}

// turnsDir is the directory of the turns inside the git directory.
const turnsDir = "artifactfs-hooks"

// turnFile returns the file of a conversation. The name is a hash, because agents choose the names of conversations
// freely.
func turnFile(gitDir, conversation string) string {
	sum := sha256.Sum256([]byte(conversation))
	return filepath.Join(gitDir, turnsDir, hex.EncodeToString(sum[:8])+".json")
}

// LoadTurn returns the state of a conversation. known is false for a new one, which begins at the
// end of the reflog: earlier commits are not the agent's.
func LoadTurn(gitDir, conversation string) (t Turn, known bool, err error) {
	text, err := os.ReadFile(turnFile(gitDir, conversation))
	if err == nil && json.Unmarshal(text, &t) == nil {
		return t, true, nil
	}
	if err := missingIsFine(err); err != nil {
		return Turn{}, false, err
	}
	info, err := os.Stat(filepath.Join(gitDir, "logs", "HEAD"))
	if err != nil {
		return Turn{}, false, missingIsFine(err)
	}
	return Turn{Reflog: info.Size()}, false, nil
}

// Save writes the Turn for the next event of the conversation.
func (t Turn) Save(gitDir, conversation string) error {
	file := turnFile(gitDir, conversation)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return disk.WriteFile(file, text, 0o600)
}

// ForgetTurn removes the state of a conversation.
func ForgetTurn(gitDir, conversation string) error {
	return missingIsFine(os.Remove(turnFile(gitDir, conversation)))
}

// ForgetTurns removes the state of all conversations.
func ForgetTurns(gitDir string) error {
	return os.RemoveAll(filepath.Join(gitDir, turnsDir))
}

// missingIsFine returns nil for the error of a file that does not exist.
func missingIsFine(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxReflog bounds how much of the reflog one event reads, in bytes; the next event reads on.
const maxReflog = 1 << 20

// making are the beginnings of reflog messages that git writes when it has made a commit, as
// opposed to having moved to one.
var making = []string{"commit:", "commit (", "cherry-pick", "revert", "merge ", "rebase (pick)", "rebase (squash)",
	"rebase (fixup)", "rebase (reword)", "rebase (edit)", "rebase (continue)", "rebase: ", "am:"}

// Commits returns the commits that were made in the git directory since the Turn was last saved,
// oldest first, and advances it. A merge that was a fast-forward made none.
func (t *Turn) Commits(gitDir string) ([]string, error) {
	f, err := os.Open(filepath.Join(gitDir, "logs", "HEAD"))
	if err != nil {
		return nil, missingIsFine(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if info.Size() < t.Reflog { // it has expired, or was written anew
		t.Reflog = info.Size()
		return nil, nil
	}
	text, err := io.ReadAll(io.NewSectionReader(f, t.Reflog, maxReflog))
	if err != nil {
		return nil, err
	}
	// git may be writing the last line; the next event reads it.
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	t.Reflog += int64(len(text))
	var made []string
	for line := range strings.Lines(string(text)) {
		ids, message, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		words := strings.Fields(ids)
		// A reflog line is "OLD NEW NAME <MAIL> TIME ZONE", a tab, and the message.
		if !ok || len(words) < 2 || words[0] == words[1] || strings.HasSuffix(message, ": Fast-forward") {
			continue
		}
		for _, prefix := range making {
			if strings.HasPrefix(message, prefix) {
				made = append(made, words[1])
				break
			}
		}
	}
	return made, nil
}
