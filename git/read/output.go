package read

import (
	"bytes"
	"io"
	"os/exec"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// Output runs cmd and returns up to limit bytes of its output. If there are more, it kills git and returns cut.
func Output(cmd *exec.Cmd, limit int64) (out []byte, cut bool, err error) {
	stderr := &gitcmd.Tail{}
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, false, err
	}
	if err := cmd.Start(); err != nil {
		return nil, false, gitcmd.Failed(cmd, err, nil)
	}
	var buffer bytes.Buffer
	n, readErr := io.Copy(&buffer, io.LimitReader(pipe, limit+1))
	if cut = n > limit; cut {
		buffer.Truncate(int(limit))
		_ = cmd.Process.Kill() // it has ended already if that fails
	}
	err = cmd.Wait()
	switch {
	case cut:
		return buffer.Bytes(), true, nil
	case err != nil:
		return nil, false, gitcmd.Failed(cmd, err, stderr.Bytes())
	case readErr != nil:
		return nil, false, gitcmd.Failed(cmd, readErr, nil)
	}
	return buffer.Bytes(), false, nil
}
