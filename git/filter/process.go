package filter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/pktline"
)

// process is a running program that speaks the long-running filter protocol. Only one goroutine uses it.
type process struct {
	run    *program
	in     packetWriter
	out    packetReader
	smudge bool // whether the program can smudge and has not answered "abort"
	delay  bool // whether the program can delay files (see the package comment)
	listed bool // whether available was called; after that call, some programs accept no more delayed files
	served int  // number of files for which the program has answered, including refusals
}

// greet starts a process and negotiates its capabilities. If the negotiation fails, the error is ErrDeadline or wraps
// ErrUnfiltered.
func (p *Programs) greet(ctx context.Context, command string) (*process, error) {
	run, err := p.launch(ctx, command)
	if err != nil {
		return nil, err
	}
	c := &process{run: run, in: packetWriter{bufio.NewWriterSize(run, pktline.MaxPacket)}}
	c.out = newPacketReader(run)
	if err := c.handshake(); err != nil {
		late := run.late.Load()
		c.end(true)
		if late {
			return nil, ErrDeadline
		}
		return nil, fmt.Errorf("%w: start the program: %w", ErrUnfiltered, err)
	}
	return c, nil
}

// handshake exchanges versions and capabilities, as gitattributes(5) describes. It is not an error if the program
// does not announce the capability smudge; filter then refuses every file.
func (c *process) handshake() error {
	c.in.line("git-filter-client")
	c.in.line("version=2")
	c.in.end()
	if err := c.in.flush(); err != nil {
		return err
	}
	expected := []string{"git-filter-server", "version=2"}
	err := c.out.lines(func(line string) error {
		if len(expected) == 0 || line != expected[0] {
			return fmt.Errorf("%w: unexpected greeting %.100q", errProtocol, line)
		}
		expected = expected[1:]
		return nil
	})
	if err == nil && len(expected) > 0 {
		err = fmt.Errorf("%w: greeting lacks %q", errProtocol, expected[0])
	}
	if err != nil {
		return err
	}
	// like git, request all three, because some programs expect this
	for _, able := range []string{"clean", "smudge", "delay"} {
		c.in.line("capability=" + able)
	}
	c.in.end()
	if err := c.in.flush(); err != nil {
		return err
	}
	return c.out.lines(func(line string) error {
		switch line {
		case "capability=smudge":
			c.smudge = true
		case "capability=delay":
			c.delay = true
		}
		return nil
	})
}

// answer is the result of a request for one file.
type answer uint8

const (
	answered answer = iota // the output was written to File.Out
	refused                // the program did not filter this file
	delayed                // the output must be collected later
	broken                 // the program cannot be used any more
)

// filter sends a file to the program and reads the answer. If mayDelay is set, the program may delay the file. If the
// answer is refused or broken, the error is the cause. If the answer is answered, the error is nil, or wraps errOutput
// if the output could not be written.
func (c *process) filter(f *File, mayDelay bool) (answer, error) {
	switch {
	case !c.smudge:
		return refused, fmt.Errorf("%w: program does not support smudge", ErrUnfiltered)
	case len(f.Path) > pktline.MaxData-len("pathname=\n"):
		return refused, fmt.Errorf("%w: path of %d bytes is too long for the filter protocol", ErrUnfiltered, len(f.Path))
	}
	c.head(f)
	if mayDelay {
		c.in.line("can-delay=1")
	}
	c.in.end()
	if err := c.in.content(f.reader()); err != nil {
		return broken, err
	}
	return c.reply(f, mayDelay)
}

// collect requests the output of a delayed file that the program has listed as available.
func (c *process) collect(f *File) (answer, error) {
	c.head(f)
	c.in.end()
	return c.reply(f, false)
}

// head writes the first part of a request: the command and the file's path and metadata.
func (c *process) head(f *File) {
	c.in.line("command=smudge")
	c.in.line("pathname=" + f.Path)
	for _, field := range []struct{ key, value string }{{"ref", f.Ref}, {"treeish", f.Treeish}, {"blob", f.BlobID}} {
		if field.value != "" {
			c.in.line(field.key + "=" + field.value)
		}
	}
}

// reply completes a request and reads the program's answer.
//
// After the status "success" the program sends the output, and after the output it may send another status, which
// replaces the first. The status "error" means that the program refuses this file, and "abort" that it refuses this and
// all later files (gitattributes(5)). Any other status is a protocol error, after which the program cannot be used.
func (c *process) reply(f *File, mayDelay bool) (answer, error) {
	c.in.end()
	if err := c.in.flush(); err != nil {
		return broken, err
	}
	status, err := c.out.status("")
	if err != nil {
		return broken, err
	}
	var outputErr error
	if status == "success" {
		if outputErr = f.Out.Reset(); outputErr != nil {
			outputErr = fmt.Errorf("%w: %w", errOutput, outputErr)
		}
		if err := c.out.copyTo(f.Out); errors.Is(err, errOutput) {
			outputErr = err
		} else if err != nil {
			return broken, err
		}
		if status, err = c.out.status(status); err != nil {
			return broken, err
		}
	}
	switch {
	case status == "success":
		c.served++
		return answered, outputErr
	case status == "delayed" && mayDelay:
		return delayed, nil
	case status == "abort":
		c.smudge = false
		fallthrough
	case status == "error":
		c.served++
		return refused, fmt.Errorf("%w: program returned status %q", ErrUnfiltered, status)
	}
	return broken, fmt.Errorf("%w: unknown status %.100q", errProtocol, status)
}

// available waits until the program can return delayed files, and returns the paths of these files. If the list is
// empty, no file is delayed any more.
func (c *process) available() ([]string, error) {
	c.listed = true
	c.in.line("command=list_available_blobs")
	c.in.end()
	if err := c.in.flush(); err != nil {
		return nil, err
	}
	var paths []string
	err := c.out.lines(func(line string) error {
		if path, ok := strings.CutPrefix(line, "pathname="); ok {
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	status, err := c.out.status("")
	if err == nil && status != "success" {
		err = fmt.Errorf("%w: unknown status %.100q", errProtocol, status)
	}
	return paths, err
}

// end stops the process by closing its input, and returns when the process has ended. If kill is set, end first kills
// the process. Otherwise it kills the process if the process writes no output for the duration killWait.
func (c *process) end(kill bool) {
	if kill {
		c.run.kill()
	}
	c.run.in.Close()
	c.run.limit = killWait
	c.run.alive()
	_, _ = io.Copy(io.Discard, c.run.out)
	_ = c.run.wait()
}
