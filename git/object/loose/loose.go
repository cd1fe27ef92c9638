// Package loose presents a blob in the form of a loose object of git, which can be read at any offset without first
// being compressed.
//
// A loose object is a zlib stream (RFC 1950) of a header and the contents of the object (gitformat-loose). Deflate (RFC
// 1951) has blocks that store their bytes without compression. With these blocks the size of the stream depends only on
// the size of the contents, and each byte of the contents has a known offset. Only the checksum at the end of the
// stream depends on all bytes.
package loose

import (
	"encoding/binary"
	"fmt"
	"hash/adler32"
	"io"
	"strconv"

	"github.com/artifactfs/artifactfs/git/object"
)

const (
	// maxBlock is the maximum number of bytes in a stored block (RFC 1951, 3.2.4), and blockHeader the size of its header:
	// the type of the block, the number of bytes, and the complement of this number.
	maxBlock    = 1<<16 - 1
	blockHeader = 1 + 2 + 2
	// fullBlock is the size of a block with the maximum number of bytes.
	fullBlock = blockHeader + maxBlock
	sumSize   = 4 // size of the Adler-32 checksum at the end of the stream
)

// streamHeader is the header of a zlib stream with a window of 32 KiB, compressed by the fastest method.
var streamHeader = [2]byte{0x78, 0x01}

// Size returns the size of the loose form of a blob whose contents have n bytes.
func Size(n int64) int64 {
	length := int64(len(header(n))) + n
	return int64(len(streamHeader)) + length + blocks(length)*blockHeader + sumSize
}

// header returns the bytes that precede the contents of a blob.
func header(n int64) []byte {
	return append(strconv.AppendInt([]byte(object.Blob.String()+" "), n, 10), 0)
}

// blocks returns the number of blocks that store length bytes. A header is never empty, so there is at least one.
func blocks(length int64) int64 { return (length + maxBlock - 1) / maxBlock }

// Blob is the loose form of a blob. It is safe for concurrent use if its contents are.
type Blob struct {
	content io.ReaderAt
	header  []byte
	length  int64 // number of bytes of the header and the contents
	size    int64 // number of bytes of the loose form
}

// New returns the loose form of the blob with these contents, which have n bytes.
func New(content io.ReaderAt, n int64) *Blob {
	h := header(n)
	return &Blob{content: content, header: h, length: int64(len(h)) + n, size: Size(n)}
}

// Size returns the size of the loose form in bytes.
func (b *Blob) Size() int64 { return b.size }

// ReadAt reads a part of the loose form. To read the last bytes, it reads the whole contents.
func (b *Blob) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("read loose form: negative offset %d", off)
	}
	for n < len(p) && off < b.size {
		k, err := b.part(p[n:], off)
		if err != nil {
			return n, err
		}
		n, off = n+k, off+int64(k)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// part copies bytes of the loose form, from the offset off, to p. It copies at least one byte, and stops at the end of
// the header, block or checksum that contains off. It returns the number of copied bytes.
func (b *Blob) part(p []byte, off int64) (int, error) {
	if off < int64(len(streamHeader)) {
		return copy(p, streamHeader[off:]), nil
	}
	if left := b.size - off; left <= sumSize {
		sum, err := b.sum()
		return copy(p, sum[sumSize-left:]), err
	}
	block, at := (off-int64(len(streamHeader)))/fullBlock, (off-int64(len(streamHeader)))%fullBlock
	start := block * maxBlock
	stored := min(b.length-start, maxBlock)
	if at < blockHeader {
		var h [blockHeader]byte
		if start+stored == b.length {
			h[0] = 1 // mark this block as the last one
		}
		binary.LittleEndian.PutUint16(h[1:], uint16(stored))
		binary.LittleEndian.PutUint16(h[3:], ^uint16(stored))
		return copy(p, h[at:]), nil
	}
	at -= blockHeader
	return b.plain(p[:min(int64(len(p)), stored-at)], start+at)
}

// plain copies bytes of the header or the contents to p. off counts from the first byte of the header.
func (b *Blob) plain(p []byte, off int64) (int, error) {
	if off < int64(len(b.header)) {
		return copy(p, b.header[off:]), nil
	}
	n, err := b.content.ReadAt(p, off-int64(len(b.header)))
	if n == len(p) {
		return n, nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, fmt.Errorf("read contents: %w", err)
}

// sum returns the checksum of the header and the contents.
func (b *Blob) sum() (sum [sumSize]byte, err error) {
	h := adler32.New()
	h.Write(b.header)
	n := b.length - int64(len(b.header))
	if copied, err := io.Copy(h, io.NewSectionReader(b.content, 0, n)); err != nil || copied != n {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return sum, fmt.Errorf("read contents: %w", err)
	}
	binary.BigEndian.PutUint32(sum[:], h.Sum32())
	return sum, nil
}
