/** Files imported as text by the test runner's bundler, since workerd has no file system. */

declare module "*?raw" {
  const text: string;
  export default text;
}
