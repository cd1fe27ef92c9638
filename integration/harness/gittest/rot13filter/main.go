// Command rot13filter is a filter driver for tests. It is a long-running filter process as described in
// gitattributes(5). Both clean and smudge replace each letter by the letter thirteen places later in the alphabet.
//
//	rot13filter [-delay] [-trace FILE]
//
// With -delay, files that may be delayed are returned only after git has requested the list of available files. The
// file -trace contains one line for the start of the process and one for each file.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const maxPacket = 65516

type filter struct {
	in    *bufio.Reader
	out   *bufio.Writer
	trace *os.File
}

func main() {
	delay := flag.Bool("delay", false,
		"return files that may be delayed only when git asks for the list of available files")
	trace := flag.String("trace", os.DevNull, "append a line for each operation to this `file`")
	flag.Parse()
	f := filter{in: bufio.NewReader(os.Stdin), out: bufio.NewWriter(os.Stdout)}
	var err error
	if f.trace, err = os.OpenFile(*trace, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err == nil {
		err = f.run(*delay)
	}
	if err != nil && err != io.EOF {
		fmt.Fprintln(os.Stderr, "rot13filter:", err)
		os.Exit(1)
	}
}

func (f *filter) run(delay bool) error {
	fmt.Fprintln(f.trace, "start")
	if _, err := f.lines(); err != nil {
		return err
	}
	able := []string{"capability=clean", "capability=smudge"}
	if delay {
		able = append(able, "capability=delay")
	}
	f.writeLines("git-filter-server", "version=2")
	if _, err := f.lines(); err != nil {
		return err
	}
	f.writeLines(able...)
	delayed := map[string][]byte{}
	for {
		head, err := f.lines()
		if err != nil {
			return err
		}
		if head["command"] == "list_available_blobs" {
			for path := range delayed {
				f.packet("pathname=" + path + "\n")
			}
			f.writeLines()
			f.writeLines("status=success")
			continue
		}
		content, err := f.content()
		if err != nil {
			return err
		}
		path := head["pathname"]
		fmt.Fprintln(f.trace, head["command"], path)
		if head["can-delay"] == "1" {
			delayed[path] = content
			f.writeLines("status=delayed")
			continue
		}
		if was, ok := delayed[path]; ok {
			content = was
			delete(delayed, path)
		}
		f.writeLines("status=success")
		for content = rot13(content); len(content) > 0; {
			n := min(len(content), maxPacket)
			f.packet(string(content[:n]))
			content = content[n:]
		}
		f.writeLines()
		f.writeLines()
	}
}

func rot13(content []byte) []byte {
	out := make([]byte, len(content))
	for i, c := range content {
		switch {
		case c >= 'a' && c <= 'z':
			c = 'a' + (c-'a'+13)%26
		case c >= 'A' && c <= 'Z':
			c = 'A' + (c-'A'+13)%26
		}
		out[i] = c
	}
	return out
}

// next returns the contents of the next packet, or nil for a flush packet.
func (f *filter) next() ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(f.in, head); err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(string(head), 16, 16)
	if err != nil || n == 0 {
		return nil, err
	}
	content := make([]byte, max(n, 4)-4)
	_, err = io.ReadFull(f.in, content)
	return content, err
}

// lines reads lines of the form "key=value" up to a flush packet.
func (f *filter) lines() (map[string]string, error) {
	lines := map[string]string{}
	for {
		content, err := f.next()
		if content == nil || err != nil {
			return lines, err
		}
		key, value, _ := strings.Cut(strings.TrimSuffix(string(content), "\n"), "=")
		lines[key] = value
	}
}

func (f *filter) content() ([]byte, error) {
	var all []byte
	for {
		content, err := f.next()
		if content == nil || err != nil {
			return all, err
		}
		all = append(all, content...)
	}
}

func (f *filter) packet(content string) { fmt.Fprintf(f.out, "%04x%s", len(content)+4, content) }

// writeLines writes lines and a flush packet, and flushes the output buffer.
func (f *filter) writeLines(lines ...string) {
	for _, line := range lines {
		f.packet(line + "\n")
	}
	f.out.WriteString("0000")
	f.out.Flush() // an error is ignored, because the next read then also fails
}
