// The search completes every word of a question, so that "a" would find all words that begin with it.
// Words without a subject are left out of a question, as they are left out of the index.
const without = new Set(("a about after an and are be can do does for from have how i if in is it its me my "
  + "of on one or own should that the there this to use what when where which who why will with").split(" "));
const post = window.Worker.prototype.postMessage;
window.Worker.prototype.postMessage = function (message, ...rest) {
  if (message?.type === 2) { // a question
    const words = message.data.split(/\s+/).filter((word) => !without.has(word.toLowerCase()));
    if (words.length) message = { ...message, data: words.join(" ") };
  }
  return post.call(this, message, ...rest);
};
