package read

import (
	"bytes"
	"errors"
	"io"
	"os/exec"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// errCut makes gitcmd.Stream end a command with more output than its limit.
var errCut = errors.New("output is too long")

// Output runs cmd and returns up to limit bytes of its output. If there are more, it kills git and returns cut.
func Output(cmd *exec.Cmd, limit int64) (out []byte, cut bool, err error) {
	var buffer bytes.Buffer
	err = gitcmd.Stream(cmd, func(pipe io.Reader) error {
		n, err := io.Copy(&buffer, io.LimitReader(pipe, limit+1))
		if cut = n > limit; cut {
			return errCut
		}
		return err
	})
	if cut {
		buffer.Truncate(int(limit))
		return buffer.Bytes(), true, nil
	}
	if err != nil {
		return nil, false, err
	}
	return buffer.Bytes(), false, nil
}
